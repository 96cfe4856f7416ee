"""The picture policy: which pixels an image file gives, when its own bytes are kept, and what is counted."""

from __future__ import annotations

import io
import pickle
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from hardmine.errors import InputError, UnknownNameError
from hardmine.options import check
from hardmine.pipeline import pictures
from hardmine.pipeline.pictures import PicturePolicy, apply, encode, render
from hardmine.pipeline.readers.base import Picture
from hardmine.store import decode as rules
from hardmine.store.decode import ImageError, decode, examine

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def saved(image: Image.Image | np.ndarray, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, form, **options)
    return buffer.getvalue()


def oriented(tag: int, form: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = tag
    return saved(PIXELS, form, exif=exif)


def policy(**options: object) -> PicturePolicy:
    return check(PicturePolicy, options, "picture options")


def palette(transparency: bytes | None = None) -> bytes:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8)).convert("P")
    image.putpalette([255, 0, 0, 0, 9, 0, 0, 0, 0])
    return saved(image, **({} if transparency is None else {"transparency": transparency}))


def wide_ppm() -> bytes:
    values = np.arange(0, 60000, 5000, dtype=">u2")
    return b"P6 2 2 65535\n" + values.tobytes()


def animated() -> bytes:
    frames = [Image.fromarray(np.full((4, 4, 3), v, np.uint8)) for v in (10, 200)]
    return saved(frames[0], "PNG", save_all=True, append_images=frames[1:])


# Each odd case: the file, the rule by which it is met, and the first pixel under "rgb".
CASES = {
    "upside down": (oriented(3, "PNG"), rules.ORIENTATION, PIXELS[-1, -1].tolist()),
    "alpha": (saved(np.array([[[0, 0, 0, 51]]], np.uint8)), rules.ALPHA, [204, 204, 204]),
    "sixteen bits": (saved(np.array([[0x1FFF]], np.uint16)), rules.SIXTEEN, [0x1F] * 3),
    "sixteen bits of colour": (wide_ppm(), rules.SIXTEEN, [0, 5000 >> 8, 10000 >> 8]),
    "cmyk": (saved(Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "TIFF"), rules.CMYK, [255, 0, 0]),
    "transparent palette": (palette(bytes([0, 255, 255])), rules.ALPHA, [255, 255, 255]),
    "lab": (saved(Image.new("LAB", (2, 2), (255, 128, 128)), "TIFF"), rules.OTHER_COLOUR, [255, 255, 255]),
    "animated": (animated(), rules.FRAMES, [10, 10, 10]),
}


@pytest.mark.parametrize("case", CASES)
def test_an_odd_file_is_met_by_its_rule_and_stored_as_any_decoder_reads_it(case: str) -> None:
    content, rule, first = CASES[case]
    stored = apply(Picture(content, b"x"), policy())
    assert rule in stored.rules
    assert pictures.ENCODED in stored.rules
    assert stored.extension == "png"
    plain = np.asarray(Image.open(io.BytesIO(stored.content)))
    np.testing.assert_allclose(plain[0, 0], first, atol=1)
    np.testing.assert_array_equal(plain, decode(content, "rgb"))
    again = examine(stored.content, "rgb")
    np.testing.assert_array_equal(again.pixels, plain)
    assert not again.rules


@pytest.mark.parametrize(
    ("content", "extension"),
    [
        (saved(PIXELS), "png"),
        (saved(PIXELS[..., 0]), "png"),
        (saved(Image.fromarray(PIXELS[..., 0] > 99)), "png"),
        (saved(PIXELS, "JPEG"), "jpg"),
        (saved(PIXELS[..., 0], "JPEG"), "jpg"),
        (oriented(1), "jpg"),
        (saved(PIXELS, "WEBP", lossless=True), "webp"),
        (saved(PIXELS, "PPM"), "ppm"),
        (saved(PIXELS[..., 0], "PPM"), "pgm"),
        (saved(PIXELS, "BMP"), "bmp"),
        (saved(PIXELS, "TIFF"), "tif"),
        (palette(), "png"),
        (saved(np.dstack([PIXELS, np.full(PIXELS.shape[:2], 255, np.uint8)])), "png"),
    ],
)
def test_the_own_bytes_are_kept_where_they_say_the_same_everywhere(content: bytes, extension: str) -> None:
    stored = apply(Picture(content, b"x"), policy())
    assert stored.content == content
    assert stored.extension == extension
    assert pictures.KEPT in stored.rules
    assert stored.shape == decode(content, "rgb").shape
    plain = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(decode(content, "rgb"), plain)


def test_a_jpeg_with_a_preview_is_a_jpeg() -> None:
    content = saved(PIXELS, "MPO", save_all=True, append_images=[Image.fromarray(PIXELS[::2, ::2])])
    stored = apply(Picture(content, b"x"), policy())
    assert (stored.content, stored.extension) == (content, "jpg")


def test_grey() -> None:
    stored = apply(Picture(saved(PIXELS), b"x"), policy(colour="grey"))
    assert stored.shape == (20, 30)
    assert pictures.GREYED in stored.rules
    np.testing.assert_array_equal(decode(stored.content, "grey"), decode(saved(PIXELS), "grey"))
    kept = apply(Picture(saved(PIXELS[..., 0]), b"x"), policy(colour="grey"))
    assert pictures.KEPT in kept.rules
    np.testing.assert_array_equal(decode(kept.content, "grey"), PIXELS[..., 0])
    np.testing.assert_array_equal(decode(kept.content, "rgb"), np.repeat(PIXELS[..., :1], 3, axis=2))


def test_png_files_with_16_bits_of_colour_are_told_by_their_header() -> None:
    header = b"\x89PNG\r\n\x1a\n"
    chunks = io.BytesIO()
    raw = b"\0" + np.array([0x1234, 0xFFFE, 0x00FF], ">u2").tobytes()
    PngImagePlugin.putchunk(chunks, b"IHDR", (1).to_bytes(4, "big") * 2 + bytes([16, 2, 0, 0, 0]))
    PngImagePlugin.putchunk(chunks, b"IDAT", zlib.compress(raw))
    PngImagePlugin.putchunk(chunks, b"IEND", b"")
    found = examine(header + chunks.getvalue(), "rgb")
    assert found.pixels.tolist() == [[[0x12, 0xFF, 0x00]]]
    assert found.rules == {rules.SIXTEEN}


@pytest.mark.parametrize(
    ("size", "shape", "rule"),
    [
        ("keep", (20, 30, 3), None),
        ("shorter:20", (20, 30, 3), None),
        ("shorter:40", (20, 30, 3), None),
        ("shorter:10", (10, 15, 3), pictures.SHRUNK),
        ("square:10", (10, 10, 3), pictures.SHRUNK),
        ("square:20", (20, 20, 3), pictures.SQUARED),
        ("square:40", (40, 40, 3), pictures.ENLARGED),
    ],
)
def test_sizes(size: str, shape: tuple[int, ...], rule: str | None) -> None:
    stored = apply(Picture(saved(PIXELS), b"x"), policy(size=size))
    assert stored.shape == shape == decode(stored.content, "rgb").shape
    assert (rule is None) == (pictures.KEPT in stored.rules)
    assert rule is None or rule in stored.rules
    assert policy(size=size).shape == (shape if size.startswith("square") else None)
    tall = apply(Picture(saved(PIXELS.swapaxes(0, 1)), b"x"), policy(size=size))
    assert tall.shape == (shape[1], shape[0], 3)


def test_a_square_is_the_middle() -> None:
    np.testing.assert_array_equal(
        render(Picture(saved(PIXELS), b"x"), policy(size="square:20")).pixels, PIXELS[:, 5:25]
    )


def test_shrinking_averages() -> None:
    checks = np.kron(np.indices((8, 8)).sum(0) % 2, np.ones((2, 2))).astype(np.uint8) * 254
    small = render(Picture(saved(checks), b"x"), policy(size="shorter:2", colour="grey")).pixels
    assert np.abs(small.astype(int) - 127).max() <= 6


@pytest.mark.parametrize(
    ("box", "where", "clipped"),
    [
        ((5, 2, 9, 8), np.s_[2:8, 5:9], False),
        ((5.4, 1.6, 9.4, 8.4), np.s_[2:8, 5:9], False),
        ((-3, -3, 4, 4), np.s_[0:4, 0:4], True),
        ((25, 15, 99, 99), np.s_[15:20, 25:30], True),
    ],
)
def test_boxes(box: tuple[float, float, float, float], where: tuple[slice, slice], clipped: bool) -> None:
    found = render(Picture(saved(PIXELS), b"x", box), policy(crop=True))
    np.testing.assert_array_equal(found.pixels, PIXELS[where])
    assert pictures.CROPPED in found.rules
    assert (pictures.CLIPPED in found.rules) == clipped
    np.testing.assert_array_equal(render(Picture(saved(PIXELS), b"x", box), policy()).pixels, PIXELS)


def test_a_box_is_in_the_upright_photograph() -> None:
    found = render(Picture(oriented(3, "PNG"), b"x", (0, 0, 2, 1)), policy(crop=True))
    np.testing.assert_array_equal(found.pixels, PIXELS[::-1, ::-1][:1, :2])


def test_a_box_over_the_whole_image_keeps_its_bytes() -> None:
    stored = apply(Picture(saved(PIXELS), b"x", (0, 0, 30, 20)), policy(crop=True))
    assert stored.content == saved(PIXELS)
    assert stored.rules == {pictures.KEPT}


@pytest.mark.parametrize("box", [(30, 0, 40, 10), (5, 5, 5.2, 9), (9, 9, 5, 5), (float("nan"), 0, 1, 1)])
def test_a_box_without_a_pixel_is_an_error_that_names_the_item(box: tuple[float, float, float, float]) -> None:
    with pytest.raises(ImageError, match=r"caf\\xe9.png: box (outside the image|not finite) \("):
        apply(Picture(saved(PIXELS), b"caf\xe9.png", box), policy(crop=True))


def test_encodings() -> None:
    jpeg = apply(Picture(saved(PIXELS), b"x"), policy(encoding="jpeg:95"))
    assert jpeg.extension == "jpg"
    assert Image.open(io.BytesIO(jpeg.content)).format == "JPEG"
    assert apply(Picture(saved(PIXELS), b"x"), policy(encoding="jpeg:95")).content == jpeg.content
    png = apply(Picture(saved(PIXELS, "BMP"), b"x"), policy(encoding="png"))
    np.testing.assert_array_equal(decode(png.content, "rgb"), PIXELS)
    with pytest.raises(InputError, match=r"\(4, 4, 2\)"):
        encode(np.zeros((4, 4, 2), np.uint8), "png")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP", "PPM"])
def test_a_truncated_file_is_never_a_picture(form: str) -> None:
    content = saved(PIXELS, form)
    with pytest.raises(ImageError, match=r"cut.img: ") as caught:
        apply(Picture(content[: len(content) * 6 // 10], b"cut.img"), policy())
    assert f"{len(content) * 6 // 10:,} bytes" in caught.value.reason


def test_a_truncated_16_bit_ppm_too() -> None:
    with pytest.raises(ImageError, match="truncated"):
        decode(wide_ppm()[:-3], "rgb")


def test_options_that_cannot_be() -> None:
    for options in ({"size": "shorter"}, {"size": "square:0"}, {"size": "big"}, {"encoding": "jpeg"}):
        with pytest.raises(InputError, match="write "):
            policy(**options)
    with pytest.raises(InputError, match="write "):
        policy(encoding="jpeg:101")
    with pytest.raises(UnknownNameError, match="Did you mean 'colour'"):
        policy(color="grey")


def test_an_image_error_can_be_sent_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ImageError(b"caf\xe9", "empty")))
    assert (str(error), error.path, error.reason) == ("caf\\xe9: empty", b"caf\xe9", "empty")
