"""The HPatches layout, whole and damaged."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Reject, readers
from hardmine.pipeline.readers.hpatches import KINDS, HPatches, HPatchesOptions, sequence_number
from hardmine.pipeline.readers.hpatches_names import SEQUENCES, TEST
from hardmine.store.patches import PatchStore

ALL_KINDS = ["ref", "e1", "e2", "e3", "e4", "e5", "h1", "h2", "h3", "h4", "h5", "t1", "t2", "t3", "t4", "t5"]


def make(root: Path, sizes: dict[str, int], seed: int = 0) -> dict[tuple[str, str], np.ndarray]:
    """Sequences of so many patches; returns their strips' patches (N, 65, 65) by (sequence, strip)."""
    rng, patches = np.random.default_rng(seed), {}
    for name, count in sizes.items():
        (root / name).mkdir(parents=True)
        for kind in ALL_KINDS:
            strip = rng.integers(0, 256, (65 * count, 65), dtype=np.uint8)
            Image.fromarray(strip).save(root / name / f"{kind}.png", compress_level=1)
            patches[name, kind] = strip.reshape(count, 65, 65)
    return patches


def reader(root: Path, **options: object) -> HPatches:
    return HPatches(root, HPatchesOptions(**options))


def test_patches_classes_and_columns(tmp_path: Path) -> None:
    patches = make(tmp_path / "src", {"v_wall": 3, "i_dc": 12})
    ingest("hpatches", tmp_path / "src", tmp_path / "store", shard_rows=50)
    store = PatchStore.open(tmp_path / "store")
    assert (len(store), store.num_classes, store.pixel_shape) == (15 * 16, 15, (65, 65))
    assert store.split_names == ["all"]
    sequence, index, kind, image = (store.column(name) for name in ("sequence", "index", "kind", "image"))
    assert {c.dtype for c in (sequence, index, kind, image)} == {np.dtype(np.int64)}
    names = {SEQUENCES.index(name): name for name in ("i_dc", "v_wall")}
    for row, pixels in enumerate(store.gather(np.arange(len(store)))):
        name, strip = names[sequence[row]], ALL_KINDS[kind[row]]
        np.testing.assert_array_equal(pixels, patches[name, strip][index[row]])
        assert store.source[row] == f"{name}/{strip}.png:{index[row]}".encode()
        assert store.raw_label[row] == f"{name}:{index[row]:05}".encode()
        assert image[row] == 6 * sequence[row] + (0 if strip == "ref" else int(strip[1]))
    assert sequence[0] < sequence[-1]
    for c in range(15):  # a class is one spot: each strip once
        rows = np.flatnonzero(store.label == c)
        assert kind[rows].tolist() == list(range(16))
        assert len(set(zip(sequence[rows].tolist(), index[rows].tolist()))) == 1
    assert index[::16].tolist() == [*range(12), *range(3)]  # "00002" before "00010"
    assert list(KINDS) == ALL_KINDS


def test_a_number_means_the_same_sequence_in_every_store(tmp_path: Path) -> None:
    make(tmp_path, {"v_mine": 1, "v_wall": 1})
    before = reader(tmp_path).candidates().columns["sequence"][::16].tolist()
    assert before == [sequence_number(b"v_mine"), SEQUENCES.index("v_wall")]
    make(tmp_path, {"i_ours": 1, "i_dc": 1})
    after = reader(tmp_path).candidates()
    assert after.columns["sequence"][::16].tolist() == [12, sequence_number(b"i_ours"), *before]
    assert len(set(after.columns["image"].tolist())) == 4 * 6
    assert [sequence_number(name.encode()) for name in SEQUENCES] == list(range(116))


def test_read_does_not_depend_on_what_else_is_asked_for(tmp_path: Path) -> None:
    patches = make(tmp_path, {"i_a": 2, "v_b": 3})
    order = [p for (name, kind) in patches for p in patches[name, kind]]  # made in source order
    listed = reader(tmp_path)
    count = len(listed.candidates().source)
    assert count == len(order) == 80
    assert list(reader(tmp_path).read([])) == []
    for numbers in (range(count), [79], [0, 1, 33, 78], np.array([31, 32])):
        for source in (reader(tmp_path), pickle.loads(pickle.dumps(listed))):
            found = list(source.read(numbers))
            assert [number for number, _ in found] == list(numbers)
            for number, pixels in found:
                np.testing.assert_array_equal(pixels, order[number])


def test_official_splits(tmp_path: Path) -> None:
    make(tmp_path / "src", {"i_boutique": 1, "i_salon": 1, "v_strand": 1, "v_mine": 1})
    assert TEST["a"] & {"i_boutique", "i_salon", "v_strand"} == {"i_salon", "v_strand"}
    found = reader(tmp_path / "src", official="a").candidates()
    assert found.split is not None
    assert found.split[::16].tolist() == [b"train", b"test", b"", b"test"]
    assert found.split.shape == found.source.shape
    assert found.counts["sequences of no official name"] == 1
    assert reader(tmp_path / "src").candidates().split is None
    with pytest.raises(InputError, match="'a', 'b' or 'c'"):
        ingest("hpatches", tmp_path / "src", tmp_path / "store", options={"official": "d"})
    with pytest.raises(UnknownNameError, match="official"):
        ingest("hpatches", tmp_path / "src", tmp_path / "store", options={"oficial": "a"})


def test_the_official_names() -> None:
    """Facts of the release: 57 + 59 sequences, 40 of them for testing, 20 of each kind."""
    assert len(set(SEQUENCES)) == len(SEQUENCES) == 116
    assert list(SEQUENCES) == sorted(SEQUENCES)
    assert sum(name.startswith("i_") for name in SEQUENCES) == 57
    assert list(TEST) == ["a", "b", "c"]
    for test in TEST.values():
        assert test < set(SEQUENCES)
        assert len(test) == 40
        assert sum(name.startswith("v_") for name in test) == 20


def damaged(root: Path, strip: str, how: str) -> None:
    path = root / "v_wall" / strip
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:2000])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        width, height = map(int, how.split("x"))
        Image.fromarray(np.zeros((height, width), np.uint8)).save(path)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "1 of 16 strips are missing (e3)"),
        ("truncated", "e3.png is truncated (2,000 bytes)"),
        ("empty", "e3.png is not a PNG file (0 bytes)"),
        ("folder", "e3.png cannot be read (Is a directory)"),
        ("64x130", "e3.png: width 64, a strip is 65 pixels wide"),
        ("65x137", "e3.png: height 137 is not a multiple of 65"),
        ("65x195", "e3.png: height 195 (3 patches), but ref.png has 130 (2 patches)"),
    ],
)
def test_a_sequence_is_whole_or_left_out(tmp_path: Path, how: str, reason: str) -> None:
    patches = make(tmp_path / "src", {"i_a": 1, "v_wall": 2, "v_x": 1})
    damaged(tmp_path / "src", "e3.png", how)
    report = ingest("hpatches", tmp_path / "src", tmp_path / "store")
    store = PatchStore.open(tmp_path / "store")
    assert store.rejects() == [(b"v_wall", f"{reason}; the sequence is left out")]
    assert report.counts["sequences (116 expected)"] == 2
    assert report.counts["sequences left out"] == 1
    assert len(store) == 32
    np.testing.assert_array_equal(store.gather(np.array([16]))[0], patches["v_x", "ref"][0])
    with pytest.raises(InputError, match=r"v_wall: .*e3"):
        ingest("hpatches", tmp_path / "src", tmp_path / "strict", on_bad="fail")


def test_a_strip_that_cannot_be_decoded_is_a_reject_for_each_of_its_patches(tmp_path: Path) -> None:
    patches = make(tmp_path, {"i_a": 2})
    path = tmp_path / "i_a/h2.png"
    content = bytearray(path.read_bytes())
    content[200:300] = bytes(100)
    path.write_bytes(content)
    listed = reader(tmp_path)
    assert listed.candidates().rejects == []
    found = dict(listed.read(range(32)))
    bad = {number: item for number, item in found.items() if isinstance(item, Reject)}
    assert [item.source for item in bad.values()] == [b"i_a/h2.png:0", b"i_a/h2.png:1"]
    assert all("cannot be decoded" in item.reason or "truncated" in item.reason for item in bad.values())
    np.testing.assert_array_equal(found[31], patches["i_a", "t5"][1])
    Image.fromarray(np.zeros((65, 65), np.uint8)).save(path)
    assert all("changed" in item.reason for _, item in listed.read([14, 15]) if isinstance(item, Reject))


def test_other_files_and_wrong_folders(tmp_path: Path) -> None:
    make(tmp_path / "src", {"i_a": 1})
    (tmp_path / "src/i_a/ref.png").rename(tmp_path / "src/i_a/REF.PNG")
    (tmp_path / "src/i_a/H_ref_1").touch()
    (tmp_path / "src/i_notes").touch()
    (tmp_path / "src/other").mkdir()
    (tmp_path / "src/.DS_Store").touch()
    found = reader(tmp_path / "src").candidates()
    assert found.source[0] == b"i_a/REF.PNG:0"
    assert found.counts["dot files skipped"] == 1
    assert found.counts["files and folders that are no sequence"] == 2
    (tmp_path / "src/i_a/REF.PNG").rename(tmp_path / "src/i_a/ref.png")
    with pytest.raises(InputError, match="This is one sequence: give the folder that it is in"):
        reader(tmp_path / "src/i_a").candidates()
    with pytest.raises(InputError, match=r"no sequence in .*found: nothing"):
        reader(tmp_path / "src/other").candidates()
    with pytest.raises(MissingError, match="no folder"):
        reader(tmp_path / "nowhere").candidates()
    os.remove(tmp_path / "src/i_a/ref.png")
    with pytest.raises(InputError, match=r"1 of 16 strips are missing \(ref\)"):
        ingest("hpatches", tmp_path / "src", tmp_path / "store")


@pytest.mark.shared
@pytest.mark.skipif("HARDMINE_SHARED" not in os.environ, reason="HARDMINE_SHARED names no folder with real sequences")
def test_real_strips(tmp_path: Path) -> None:
    shared = Path(os.environ["HARDMINE_SHARED"])
    sequences = [str(shared / "data" / "sequences" / name) for name in ("wall", "v_churchill")]
    command = [sys.executable, "make_hpatches.py", str(tmp_path), *sequences, "--points", "40"]
    subprocess.run(command, cwd=shared / "tools", check=True, capture_output=True)
    listed = readers.get("hpatches")(tmp_path, HPatchesOptions())
    found = listed.candidates()
    assert found.rejects == []
    assert len(found.source) == 2 * 16 * 40
    for number, pixels in listed.read([0, 777, len(found.source) - 1]):
        name, _, index = found.source[number].decode().rpartition(":")
        strip = np.asarray(Image.open(tmp_path / name).convert("L"))
        np.testing.assert_array_equal(pixels, strip[65 * int(index) : 65 * int(index) + 65])
