"""The PhotoTour layout, whole and damaged."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Options, Reject
from hardmine.pipeline.readers.phototour import PhotoTour
from hardmine.store.patches import PatchStore


def open_ingested(src: Path, **options: object) -> PatchStore:
    ingest("phototour", src, src.parent / "store", **options)  # type: ignore[arg-type]
    return PatchStore.open(src.parent / "store")


def test_patches_labels_and_positions(tmp_path: Path, phototour: Callable) -> None:
    patches = phototour(tmp_path / "src", 300, pairs="0 0 0 2 0 0\n299 99 0 3 1 7\n")
    store = open_ingested(tmp_path / "src", shard_rows=128)
    np.testing.assert_array_equal(store.gather(np.arange(300)), patches)
    assert store.label.tolist() == [i // 3 for i in range(300)]
    assert store.source[[0, 255, 256]].tolist() == [b"patches0000.bmp:0", b"patches0000.bmp:255", b"patches0001.bmp:0"]
    image, frame = store.column("image"), store.column("frame")
    assert image is not None
    assert frame is not None
    assert (image.dtype, frame.dtype) == (np.int64, np.float32)
    assert image[:7].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert frame[5].tolist() == [5.5, 10.25, 4.0, 0.5]
    pairs = store.pairs()
    assert (pairs.name, pairs.lost) == ("m50_4_4_0", 0)
    assert (pairs.first.tolist(), pairs.second.tolist(), pairs.match.tolist()) == ([0, 299], [2, 3], [True, False])


def test_unsorted_points_are_sorted_stably(tmp_path: Path, phototour: Callable) -> None:
    points = [9, 2, 9, 2, 5]
    patches = phototour(tmp_path / "src", 5, points=points)
    store = open_ingested(tmp_path / "src", shard_rows=2)
    assert store.raw_label.tolist() == [2, 2, 5, 9, 9]
    np.testing.assert_array_equal(store.gather(np.arange(5)), patches[[1, 3, 4, 0, 2]])


def test_read_does_not_depend_on_what_else_is_asked_for(tmp_path: Path, phototour: Callable) -> None:
    patches = phototour(tmp_path / "src", 300)
    reader = PhotoTour(tmp_path / "src", Options())
    assert list(reader.read([])) == []
    for numbers in ([299], [0, 17, 256], np.array([255, 256])):
        found = list(reader.read(numbers))
        assert [number for number, _ in found] == list(numbers)
        for number, pixels in found:
            np.testing.assert_array_equal(pixels, patches[number])


def test_a_missing_mosaic_shifts_nothing(tmp_path: Path, phototour: Callable) -> None:
    """A17: rows and pixels stay together; B: a hole in the middle."""
    patches = phototour(tmp_path / "src", 600, pairs="0 0 0 300 100 0\n0 0 0 599 199 0\n")
    (tmp_path / "src/patches0001.bmp").unlink()
    store = open_ingested(tmp_path / "src", shard_rows=100)
    kept = [*range(256), *range(512, 600)]
    np.testing.assert_array_equal(store.gather(np.arange(len(store))), patches[kept])
    assert store.raw_label.tolist() == [i // 3 for i in kept]
    assert Counter(reason for _, reason in store.rejects()) == {"patches0001.bmp is missing": 256}
    assert store.rejects()[0][0] == b"patches0001.bmp:0"
    assert store.manifest.counts["mosaics missing"] == 1
    pairs = store.pairs()
    assert pairs.lost == 1
    assert store.source[pairs.second].tolist() == [b"patches0002.bmp:87"]


def test_every_kind_of_bad_mosaic_has_its_own_reason(tmp_path: Path, phototour: Callable) -> None:
    """A1, A18: file, reason, bytes found and expected."""
    src = tmp_path / "src"
    patches = phototour(src, 256 * 7)
    content = (src / "patches0001.bmp").read_bytes()
    (src / "patches0001.bmp").write_bytes(content[: len(content) * 6 // 10])
    (src / "patches0002.bmp").write_bytes(b"")
    (src / "patches0003.bmp").write_bytes(b"x" * len(content))
    cv2.imwrite(str(src / "patches0004.bmp"), np.zeros((1024, 512), np.uint8))
    (src / "patches0005.bmp").unlink()
    (src / "patches0006.bmp").unlink()
    (src / "patches0006.bmp").mkdir()  # cannot be read, whoever asks
    store = open_ingested(src)
    np.testing.assert_array_equal(store.gather(np.arange(len(store))), patches[:256])
    reasons = Counter(reason for _, reason in store.rejects())
    assert set(reasons.values()) == {256}
    assert sorted(reasons) == [
        f"patches0001.bmp is cut short: {len(content) * 6 // 10} bytes, expected {len(content)}",
        f"patches0002.bmp has 0 bytes, expected about {len(content)}",
        f"patches0003.bmp ({len(content)} bytes) is not a BMP file",
        "patches0004.bmp is 512 x 1024 pixels, expected 1024 x 1024 (16 x 16 patches of 64)",
        "patches0005.bmp is missing",
        "patches0006.bmp cannot be read: Is a directory",
    ]


def test_every_form_of_mosaic_gives_what_opencv_decodes(tmp_path: Path, phototour: Callable) -> None:
    """Those that need no decoding, and those that do."""
    phototour(tmp_path / "src", 256)
    path = tmp_path / "src/patches0000.bmp"
    plain = path.read_bytes()
    header, palette, pixels = plain[:54], plain[54:1078], plain[1078:]

    def with_field(at: int, value: int, size: int = 4) -> bytes:
        return header[:at] + value.to_bytes(size, "little", signed=True) + header[at + size :]

    forms = {
        "plain": plain,
        "top down": with_field(22, -1024) + palette + pixels,
        "colours counted": with_field(46, 256) + palette + pixels,
        "inverted": header + palette[::-1][3:] + b"\0\0\0" + pixels,
        "coloured": header + bytes(range(256)) * 4 + pixels,
        "24 bits": with_field(10, 54)[:28] + (24).to_bytes(2, "little") + header[30:] + pixels * 3,
        "gap": with_field(10, 1080) + palette + b"\1\2" + pixels,
    }
    seen = set()
    for form, content in forms.items():
        path.write_bytes(content)
        mosaic = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        expected = [mosaic[y : y + 64, x : x + 64] for y in range(0, 1024, 64) for x in range(0, 1024, 64)]
        found = [pixels for _, pixels in PhotoTour(tmp_path / "src", Options()).read(np.arange(256))]
        np.testing.assert_array_equal(found, expected, err_msg=form)
        seen.add(mosaic.tobytes())
    assert len(seen) == 5  # three forms hold the same picture


def test_an_unknown_packing_is_a_reject(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 3)
    path = tmp_path / "src/patches0000.bmp"
    content = bytearray(path.read_bytes())
    content[30:34] = (77).to_bytes(4, "little")
    path.write_bytes(content)
    ((_, item),) = PhotoTour(tmp_path / "src", Options()).read([0])
    assert isinstance(item, Reject)
    assert item.reason == f"patches0000.bmp ({len(content)} bytes) cannot be decoded"


def test_dot_files_are_skipped_and_counted(tmp_path: Path, phototour: Callable) -> None:
    """A8."""
    patches = phototour(tmp_path / "src", 300)
    (tmp_path / "src/._patches0000.bmp").write_bytes(b"Mac OS X")
    (tmp_path / "src/.DS_Store").touch()
    store = open_ingested(tmp_path / "src")
    np.testing.assert_array_equal(store.gather(np.arange(300)), patches)
    assert store.manifest.counts["dot files skipped"] == 2
    assert store.manifest.counts["mosaics"] == 2


def test_extensions_without_case(tmp_path: Path, phototour: Callable) -> None:
    """A9."""
    patches = phototour(tmp_path / "src", 300)
    os.rename(tmp_path / "src/patches0001.bmp", tmp_path / "src/patches0001.BMP")
    store = open_ingested(tmp_path / "src")
    np.testing.assert_array_equal(store.gather(np.arange(300)), patches)
    assert store.source[299] == b"patches0001.BMP:43"
    (tmp_path / "src/patches1.bmp").touch()
    with pytest.raises(InputError, match=r"patches0001\.BMP and patches1\.bmp, both mosaic 1"):
        PhotoTour(tmp_path / "src", Options()).candidates()


def test_info_shorter_than_the_mosaics(tmp_path: Path, phototour: Callable) -> None:
    patches = phototour(tmp_path / "src", 600, interest=False)
    (tmp_path / "src/info.txt").write_text("".join(f"{i // 3} 0\n" for i in range(254)))
    store = open_ingested(tmp_path / "src")
    np.testing.assert_array_equal(store.gather(np.arange(254)), patches[:254])
    assert store.rejects() == [
        (source, "no line in info.txt")
        for source in (b"patches0000.bmp:254", b"patches0000.bmp:255", b"patches0001.bmp", b"patches0002.bmp")
    ]
    assert store.manifest.counts["sources not listed"] == 4
    with pytest.raises(InputError, match=r"patches0000\.bmp:254: no line in info\.txt"):
        ingest("phototour", tmp_path / "src", tmp_path / "strict", on_bad="fail")


def test_info_longer_than_the_mosaics(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 256, interest=False)
    (tmp_path / "src/info.txt").write_text("".join(f"{i // 3} 0\n" for i in range(260)))
    store = open_ingested(tmp_path / "src")
    assert len(store) == 256
    assert store.rejects() == [(b"patches0001.bmp:%d" % i, "patches0001.bmp is missing") for i in range(4)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("info.txt", "0 0\n0 0\nx 0\n", r"info\.txt:3: .*integer; found 'x 0'"),
        ("info.txt", "0 0\n\n0 0\n", r"info\.txt:2: .*found ''"),
        ("info.txt", "0 0\n0.5 0\n0 0\n", r"info\.txt:2: "),
        ("info.txt", "nan 0\n0 0\n0 0\n", r"info\.txt:1: "),
        ("info.txt", "0 0\n1_0 0\n0 0\n", r"info\.txt:2: "),
        ("info.txt", "\n", r"info\.txt is empty"),
        ("interest.txt", "0 1 2 3 4\n0 1 2 3\n0 1 2 3 4\n", r"interest\.txt:2: "),
        ("interest.txt", "0 1 2 3 4\n0 1 2 3 4\n", r"interest\.txt has 2 lines, info\.txt has 3"),
        ("interest.txt", "0 1 2 3 4\n0 1 2 3 4\n0 1 2 3 4000\n", r"interest\.txt:3: .*out of range"),
        ("m50_4_4_0.txt", "0 0 0 1 0 0\n0 0 0 3 1 0\n", r"m50_4_4_0\.txt:2: patch 3 does not exist.*3 lines"),
        ("m50_4_4_0.txt", "-1 0 0 1 0 0\n", r"m50_4_4_0\.txt:1: patch -1 does not exist"),
        (
            "m50_4_4_0.txt",
            "0 0 0 1 0 0\n0 0 0 2 5 0\n",
            r"m50_4_4_0\.txt:2: patch 2 shows 3D point 5, info\.txt says 0",
        ),
        ("m50_4_4_0.txt", "0 0 0\n", r"m50_4_4_0\.txt:1: "),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, phototour: Callable, name: str, text: str, message: str) -> None:
    phototour(tmp_path / "src", 3)
    (tmp_path / "src" / name).write_text(text)
    with pytest.raises(InputError, match=message):
        ingest("phototour", tmp_path / "src", tmp_path / "store")


def test_other_line_ends(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 3)
    (tmp_path / "src/info.txt").write_bytes(b"0 0\r\n0 0\r\n1 0\r\n\r\n")
    assert PhotoTour(tmp_path / "src", Options()).candidates().raw_label.tolist() == [0, 0, 1]


def test_wrong_folders_say_what_was_found(tmp_path: Path, phototour: Callable) -> None:
    def message(src: Path) -> str:
        with pytest.raises((InputError, MissingError)) as caught:
            PhotoTour(src, Options()).candidates()
        return str(caught.value)

    phototour(tmp_path / "all/liberty", 3)
    (tmp_path / "all/notes.txt").touch()
    assert "in its folders liberty: ingest them one by one" in message(tmp_path / "all")
    (tmp_path / "zip").mkdir()
    assert "found: nothing" in message(tmp_path / "zip")
    (tmp_path / "zip/liberty.zip").touch()
    assert "found: liberty.zip" in message(tmp_path / "zip")
    assert "_harris" in message(tmp_path / "zip")
    assert "no folder" in message(tmp_path / "nowhere")
    (tmp_path / "all/liberty/info.txt").unlink()
    assert "no info.txt" in message(tmp_path / "all/liberty")
