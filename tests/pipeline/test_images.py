"""Reading a photograph and listing a folder: the ordinary cases (the odd ones are in cases/test_a_images.py)."""

import os

import numpy as np
import pytest
from PIL import Image

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.images import ImageError, list_images, printable, read_grey, relative_name


def test_grey_comes_back_as_it_is(tmp_path):
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    Image.fromarray(grey).save(tmp_path / "a.png")
    read = read_grey(tmp_path / "a.png")
    np.testing.assert_array_equal(read, grey)
    assert read.flags.writeable


def test_colour_is_luma(tmp_path):
    colour = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "a.png")
    luma = colour @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(read_grey(tmp_path / "a.png"), luma, atol=0.51)


@pytest.mark.parametrize("mode", ["1", "P", "CMYK", "YCbCr", "LA", "PA", "RGBA"])
def test_every_mode_of_a_grey_ramp_is_that_ramp(tmp_path, mode):
    ramp = Image.fromarray(np.tile(np.arange(0, 256, 8, dtype=np.uint8), (4, 1)))
    if mode == "1":
        ramp = ramp.point(lambda v: 255 * (v > 127))
    suffix = "tif" if mode in ("CMYK", "YCbCr", "PA") else "png"
    image = ramp.convert("P").convert(mode) if mode in ("P", "PA") else ramp.convert("RGB").convert(mode)
    path = tmp_path / f"a.{suffix}"
    image.save(path, "PNG" if suffix == "png" else "TIFF")
    np.testing.assert_allclose(read_grey(path), np.asarray(ramp.convert("L")), atol=2)


def test_floats_and_wide_integers_are_refused_with_the_remedy(tmp_path):
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "f.tif")
    Image.fromarray(np.full((4, 4), 70000, np.int32)).save(tmp_path / "i.tif")
    with pytest.raises(ImageError, match=r"floating-point.*convert"):
        read_grey(tmp_path / "f.tif")
    with pytest.raises(ImageError, match=r"70000.*convert"):
        read_grey(tmp_path / "i.tif")


def test_list_is_byte_sorted_and_recursive(tmp_path):
    for name in ["b/2.png", "b/10.png", "a.png", "B.png", "b.png", "é.png", "notes.txt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    paths, counts = list_images(tmp_path)
    names = [relative_name(path, tmp_path) for path in paths]
    assert names == sorted(names)
    assert names == [b"B.png", b"a.png", b"b.png", b"b/10.png", b"b/2.png", "é.png".encode()]
    assert counts == {"other files skipped": 1}
    assert [p.name for p in list_images(tmp_path, recursive=False)[0]] == ["B.png", "a.png", "b.png", "é.png"]


def test_linked_folders_are_counted_not_followed(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    os.symlink(tmp_path, tmp_path / "loop")
    paths, counts = list_images(tmp_path)
    assert len(paths) == 1
    assert counts == {"linked folders not followed": 1}


def test_a_missing_folder_and_an_empty_one(tmp_path):
    with pytest.raises(MissingError, match="nowhere is not a folder"):
        list_images(tmp_path / "nowhere")
    with pytest.raises(InputError, match="found 0 other files"):
        list_images(tmp_path)


def test_printable_never_fails_to_encode():
    assert printable(b"caf\xe9.png") == "caf\\xe9.png"
    assert printable("caf\udce9.png").encode() == b"caf\\xe9.png"
