"""Bug cases A: reading images. The number of the public report's case is in each name."""

import io
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from hardmine.errors import InputError
from hardmine.pipeline.images import ImageError, list_images, read_grey, relative_name
from hardmine.pipeline.readers.photos import Photos, PhotosOptions
from hardmine.pipeline.readers.sequences import Sequences, SequencesOptions

OPTIONS = PhotosOptions(patches_per_class=2, points_per_photo=3, pairs=0)


def texture(seed: int = 0, shape: tuple[int, int] = (100, 120)) -> np.ndarray:
    noise = cv2.GaussianBlur(np.random.default_rng(seed).standard_normal(shape), (0, 0), 2)
    return np.clip(128 + 60 * noise / noise.std(), 0, 255).astype(np.uint8)


def encoded(form: str = "PNG", seed: int = 0, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(texture(seed)).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "PPM", "BMP", "TIFF"])
def test_a01_a_file_cut_at_60_percent_is_found_and_named_with_its_size(tmp_path, form):
    whole = encoded(form)
    part = whole[: len(whole) * 6 // 10]
    (tmp_path / f"cut.{form.lower()[:3]}").write_bytes(part)
    (tmp_path / "good.png").write_bytes(encoded())
    found = Photos(tmp_path, OPTIONS).candidates()
    (reject,) = found.rejects
    assert reject.source.startswith(b"cut.")
    assert reject.reason.startswith(f"truncated ({len(part):,} bytes")
    assert len(found.raw_label) == 6


@pytest.mark.parametrize("kind", ["png", "tif", "pgm"])
def test_a03_sixteen_bits_are_scaled_never_clipped(tmp_path, kind):
    ramp = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    path = tmp_path / f"ramp.{kind}"
    if kind == "pgm":
        path.write_bytes(b"P5 32 32 65535\n" + ramp.astype(">u2").tobytes())
    else:
        Image.fromarray(ramp).save(path)
    np.testing.assert_array_equal(read_grey(path), (ramp >> 8).astype(np.uint8))


def test_a03_sixteen_bits_in_a_32_bit_image(tmp_path):
    ramp = np.arange(0, 65536, 64, dtype=np.int32).reshape(32, 32)
    Image.fromarray(ramp).save(tmp_path / "ramp.tif")
    np.testing.assert_array_equal(read_grey(tmp_path / "ramp.tif"), ramp >> 8)


def test_a05_transparent_palette_entries_and_alpha_lie_over_white(tmp_path):
    index = np.array([[0, 1], [2, 1]], np.uint8)
    image = Image.fromarray(index).convert("P")
    image.putpalette([255, 0, 0, 0, 0, 0, 0, 0, 0])
    image.save(tmp_path / "p.png", transparency=bytes([0, 255, 128]))
    assert read_grey(tmp_path / "p.png").tolist() == [[255, 0], [127, 0]]
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, :, 3] = [0, 51, 255]
    Image.fromarray(rgba).save(tmp_path / "logo.png")
    assert read_grey(tmp_path / "logo.png").tolist() == [[255, 204, 0]]


def test_a05_a_transparent_value_of_a_grey_png(tmp_path):
    eight = Image.fromarray(np.array([[10, 20]], np.uint8))
    eight.save(tmp_path / "8.png", transparency=10)
    assert read_grey(tmp_path / "8.png").tolist() == [[255, 20]]
    sixteen = Image.fromarray(np.array([[2560, 5120]], np.uint16))
    sixteen.save(tmp_path / "16.png")
    content = (tmp_path / "16.png").read_bytes()
    data = content.index(b"IDAT") - 4
    chunk = io.BytesIO()
    PngImagePlugin.putchunk(chunk, b"tRNS", (2560).to_bytes(2, "big"))
    (tmp_path / "16.png").write_bytes(content[:data] + chunk.getvalue() + content[data:])
    assert read_grey(tmp_path / "16.png").tolist() == [[255, 20]]


def test_a06_exif_orientation_is_applied(tmp_path):
    upright = texture()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90 degrees for viewing
    Image.fromarray(np.rot90(upright)).save(tmp_path / "a.jpg", exif=exif, quality=100)
    read = read_grey(tmp_path / "a.jpg")
    assert read.shape == upright.shape
    assert np.abs(read.astype(int) - upright).max() <= 3
    Image.fromarray(np.rot90(upright)).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read_grey(tmp_path / "a.png"), upright)


def test_a08_dot_files_are_skipped_and_counted_without_a_shift(tmp_path):
    for name, seed in [("a.png", 0), ("b.png", 1)]:
        (tmp_path / name).write_bytes(encoded(seed=seed))
    before = Photos(tmp_path, OPTIONS).candidates()
    for name in ("._a.png", ".DS_Store", ".hidden/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    after = Photos(tmp_path, OPTIONS).candidates()
    assert after.counts["dot files skipped"] == 3  # two files and a folder
    np.testing.assert_array_equal(after.source, before.source)
    np.testing.assert_array_equal(after.raw_label, before.raw_label)


def test_a09_extensions_in_upper_case(tmp_path):
    (tmp_path / "a.JPEG").write_bytes(encoded("JPEG"))
    (tmp_path / "b.PNG").write_bytes(encoded(seed=1))
    assert [p.name for p in list_images(tmp_path)[0]] == ["a.JPEG", "b.PNG"]
    (tmp_path / "s").mkdir()
    for k in (1, 2):
        (tmp_path / f"s/IMG{k}.PNG").write_bytes(encoded())
    (tmp_path / "s/H_1_2").write_text("1 0 0 0 1 0 0 0 1")
    assert len(Sequences(tmp_path / "s", SequencesOptions(pairs=0)).candidates().source)


def test_a11_a_folder_without_images_says_what_was_found_where(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.heic").write_bytes(b"x")
    (tmp_path / "readme.txt").write_bytes(b"x")
    with pytest.raises(InputError, match=r"and the 1 folders below it: found 2 other files \(.heic, .txt\).*\.jpg"):
        list_images(tmp_path)
    with pytest.raises(InputError, match=r"found 1 other files \(.txt\).*Its 1 folders were not searched"):
        list_images(tmp_path, recursive=False)


def test_a14_names_come_back_byte_for_byte(tmp_path):
    names = ["esgle\u0301sia.png".encode(), "església.png".encode(), b"caf\xe9.png", b"it''s \"x\".png"]
    for seed, name in enumerate(names):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(encoded(seed=seed))
    reader = Photos(tmp_path, OPTIONS)
    found = reader.candidates()
    assert list(dict.fromkeys(s.rsplit(b"#", 1)[0] for s in found.source.tolist())) == sorted(names)
    assert all(isinstance(patch, np.ndarray) for _, patch in reader.read(range(len(found.source))))
    assert {relative_name(p, tmp_path) for p in found.files} == set(names)


def test_a14_a_bad_file_with_such_a_name_has_a_printable_message(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    path.write_bytes(b"")
    with pytest.raises(ImageError, match=r"caf\\xe9.png: empty file") as caught:
        read_grey(path)
    str(caught.value).encode("utf-8")


def test_a15_a_comma_in_a_name_is_part_of_the_name(tmp_path):
    (tmp_path / "x_0,0.png").write_bytes(encoded())
    assert Photos(tmp_path, OPTIONS).candidates().source[0] == b"x_0,0.png#0/0"


def test_a18_each_cause_has_its_own_reason(tmp_path, locked):
    (tmp_path / "zero.png").write_bytes(b"")
    (tmp_path / "locked.png").write_bytes(encoded())
    (tmp_path / "text.png").write_bytes(b"hello, I am not an image")
    (tmp_path / "cut.png").write_bytes(encoded()[:500])
    damaged = bytearray(encoded())
    damaged[200] ^= 0xFF
    (tmp_path / "flipped.png").write_bytes(damaged)
    (tmp_path / "folder.png").mkdir()
    os.symlink(tmp_path / "gone", tmp_path / "missing.png")
    reasons = {}
    for name in ("zero", "locked", "text", "cut", "flipped", "folder", "missing"):
        with pytest.raises(ImageError, match=f"{name}.png: ") as caught:
            read_grey(tmp_path / f"{name}.png")
        reasons[name] = caught.value.reason.split(" (")[0]
    assert len(set(reasons.values())) == 7, reasons
    assert reasons["missing"] == "no such file"
    assert reasons["locked"] == "no permission to read it"
    assert reasons["zero"] == "empty file"
    assert reasons["cut"] == "truncated"
    (tmp_path / "good.png").write_bytes(encoded(seed=7))
    found = Photos(tmp_path, OPTIONS).candidates()
    assert [r.source for r in found.rejects] == [
        b"cut.png",
        b"flipped.png",
        b"locked.png",
        b"missing.png",
        b"text.png",
        b"zero.png",
    ]
    assert found.raw_label.max() == 2
