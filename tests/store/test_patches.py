"""PatchStore against the pixels it was made from."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.errors import InputError, MissingError, StoreError, UnknownNameError
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Pair
from hardmine.store.hdf5 import map_patches, write_patches
from hardmine.store.manifest import Manifest, Shard
from hardmine.store.patches import PatchStore

ORDER = [2, 0, 5, 1, 3, 6, 4]  # of MadeUp's labels: 007, 7, 7, cat, cat, cat, dog


def make(folder: Path, **options: object) -> PatchStore:
    ingest("made-up", folder, folder / "store", shard_rows=3, **options)  # type: ignore[arg-type]
    return PatchStore.open(folder / "store")


def test_rows_are_the_items_sorted_by_raw_label(tmp_path: Path, made_up: Callable) -> None:
    reader = made_up()
    store = make(tmp_path)
    assert len(store) == 7
    assert store.pixel_shape == (4, 5)
    assert store.num_classes == 4
    assert store.label.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert store.label.dtype == np.int64
    assert store.raw_label.tolist() == [b"007", b"7", b"7", b"cat", b"cat", b"cat", b"dog"]
    assert store.source.tolist() == [b"item %d" % i for i in ORDER]
    assert store.class_order.tolist() == list(range(7))
    assert store.class_offsets.tolist() == [0, 1, 3, 6, 7]
    image = store.column("image")
    assert image is not None
    assert image.tolist() == [i * 10 for i in ORDER]
    assert store.column("frame") is None
    assert [shard.rows for shard in store.manifest.shards] == [3, 3, 1]
    np.testing.assert_array_equal(store.gather(np.arange(7)), np.stack([reader.pixels(i) for i in ORDER]))


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), picks=st.lists(st.integers(0, 10**6), max_size=20))
def test_gather_finds_every_patch(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], picks: list[int]) -> None:
    pixels = np.random.default_rng(len(picks)).integers(0, 256, (sum(sizes), 3, 2, 3), dtype=np.uint8)
    folder = tmp_path_factory.mktemp("shards")
    shards = []
    for number, part in enumerate(np.split(pixels, np.cumsum(sizes)[:-1])):
        written = write_patches(folder / f"{number}.h5", part)
        shards.append(Shard(file=f"{number}.h5", rows=len(part), bytes=written.bytes, sha256=written.sha256))
    store = PatchStore(folder, Manifest.model_construct(rows=len(pixels), pixel_shape=(3, 2, 3), shards=shards))
    rows = np.array([pick % len(pixels) for pick in picks] if len(pixels) else [], np.int32)
    found = store.gather(rows)
    assert found.dtype == np.uint8
    assert found.flags.writeable
    assert found.tolist() == [pixels[row].tolist() for row in rows.tolist()]


@pytest.mark.parametrize("rows", [[7], [-1], [0, 2**40], np.array([2**63], np.uint64)])
def test_a_row_outside_is_an_error_and_never_wraps(tmp_path: Path, made_up: Callable, rows: list[int]) -> None:
    made_up()
    with pytest.raises(InputError, match=r"row -?\d+ is not in .*rows 0 to 6"):
        make(tmp_path).gather(np.asarray(rows))


@pytest.mark.parametrize("rows", [np.array([0.0]), np.array([True]), np.array([[0]])])
def test_rows_must_be_integers(tmp_path: Path, made_up: Callable, rows: np.ndarray) -> None:
    made_up()
    with pytest.raises(InputError, match="one-dimensional integer array"):
        make(tmp_path).gather(rows)


def test_stream_covers_the_rows_in_order(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    store = make(tmp_path)
    parts = list(store.stream(np.array([5, 1, 1, 6, 0]), 2))
    assert [rows.tolist() for rows, _ in parts] == [[5, 1], [1, 6], [0]]
    np.testing.assert_array_equal(np.concatenate([p for _, p in parts]), store.gather(np.array([5, 1, 1, 6, 0])))
    with pytest.raises(InputError, match="at least 1"):
        next(store.stream(np.arange(3), 0))


def test_without_splits_there_is_one(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    store = make(tmp_path)
    assert store.split_names == ["all"]
    assert store.rows().tolist() == store.rows("all").tolist() == list(range(7))
    with pytest.raises(UnknownNameError, match="train"):
        store.rows("train")


def test_splits_have_no_class_in_common(tmp_path: Path, made_up: Callable) -> None:
    made_up(raw_label=np.repeat(np.arange(10), 3))
    store = make(tmp_path, split="by-class:0.7")
    assert store.split_names == ["train", "val"]
    train, val = store.rows("train"), store.rows("val")
    assert len(set(store.label[train])) == 7
    assert not set(store.label[train]) & set(store.label[val])
    assert sorted([*train, *val]) == list(range(30))
    with pytest.raises(InputError, match="train, val"):
        store.rows()
    with pytest.raises(UnknownNameError, match="Did you mean 'train'"):
        store.rows("trian")


def test_pairs_speak_of_rows(tmp_path: Path, made_up: Callable) -> None:
    pair = Pair(np.array([0, 1, 3]), np.array([5, 2, 6]), np.array([True, False, True]))
    made_up(pairs={"a": pair}, bad={2: "dull"})
    store = make(tmp_path)
    pairs = store.pairs()
    assert pairs.name == "a"
    assert store.source[pairs.first].tolist() == [b"item 0", b"item 3"]
    assert store.source[pairs.second].tolist() == [b"item 5", b"item 6"]
    assert pairs.match.tolist() == [True, True]
    assert pairs.match.dtype == bool
    assert pairs.lost == 1
    with pytest.raises(UnknownNameError, match="'b'"):
        store.pairs("b")


def test_several_pair_lists_must_be_named(tmp_path: Path, made_up: Callable) -> None:
    pair = Pair(np.array([0]), np.array([1]), np.array([True]))
    made_up(pairs={"a": pair, "b": pair})
    store = make(tmp_path)
    assert store.pair_names == ["a", "b"]
    with pytest.raises(InputError, match="a, b"):
        store.pairs()
    assert store.pairs("b").name == "b"


def test_no_pairs(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    with pytest.raises(MissingError, match="no evaluation pairs"):
        make(tmp_path).pairs()


def test_arrays_of_the_store_are_not_writable(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    store = make(tmp_path)
    for values in (store.label, store.used, store.class_order, store.class_offsets, store.column("image")):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0


def test_a_used_store_can_be_pickled(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    store = make(tmp_path)
    pixels = store.gather(np.arange(7))
    content = pickle.dumps(store)
    assert len(content) < 10_000
    np.testing.assert_array_equal(pickle.loads(content).gather(np.arange(7)), pixels)


def test_fingerprint_follows_pixels_labels_splits_and_use(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    prints = [
        make(tmp_path / name, **options).fingerprint
        for name, options in {
            "a": {},
            "b": {},
            "c": {"split": "by-class:0.5"},
            "d": {"max_per_class": 2},
        }.items()
    ]
    made_up(raw_label=np.array([b"8", b"cat", b"007", b"cat", b"dog", b"8", b"cat"]))
    renamed = make(tmp_path / "e").fingerprint
    made_up(bad={4: "dull"})
    prints.append(make(tmp_path / "f").fingerprint)
    assert prints[0] == prints[1] == renamed
    assert len(set(prints)) == 4


def test_shards_are_plain_hdf5(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    store = make(tmp_path)
    with h5py.File(store.path / store.manifest.shards[1].file) as file:
        dataset = file["patches"]
        assert (dataset.chunks, dataset.compression, dataset.dtype) == (None, None, np.uint8)
        np.testing.assert_array_equal(dataset[()], store.gather(np.array([3, 4, 5])))


def test_verify_finds_a_flipped_bit_in_any_file(tmp_path: Path, made_up: Callable) -> None:
    made_up(pairs={"a": Pair(np.array([0]), np.array([1]), np.array([True]))})
    store = make(tmp_path)
    assert store.verify() == []
    assert len(store.manifest.files()) == 3 + 5 + 1 + 1
    for entry in store.manifest.files():
        path = store.path / entry.file
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert len(store.verify()) == 1
        assert str(path) in store.verify()[0]
        path.unlink()
        assert "missing" in store.verify()[0]
        path.write_bytes(content)


def test_opening_checks_presence_and_size(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    with pytest.raises(MissingError, match="no patch store at"):
        PatchStore.open(tmp_path)
    store = make(tmp_path)
    shard = store.path / store.manifest.shards[1].file
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(StoreError, match=rf"{re.escape(str(shard))} has {len(content) - 1} bytes.*{len(content)}"):
        PatchStore.open(store.path)
    shard.unlink()
    with pytest.raises(StoreError, match="is missing"):
        PatchStore.open(store.path)
    shard.write_bytes(content)
    manifest = store.path / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"format": 1', '"format": 9'))
    with pytest.raises(StoreError, match="format 9"):
        PatchStore.open(store.path)
    manifest.write_text(text[:-20])
    with pytest.raises(StoreError, match="damaged"):
        PatchStore.open(store.path)


def test_a_shard_longer_than_what_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 3, 3), dtype=np.uint8)
    whole = write_patches(tmp_path / "whole.h5", pixels)
    monkeypatch.setattr("hardmine.store.hdf5._PIECE", 10)  # bytes, of 63
    assert write_patches(tmp_path / "pieces.h5", pixels) == whole
    content = (tmp_path / "pieces.h5").read_bytes()
    assert content == (tmp_path / "whole.h5").read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == (whole.bytes, whole.sha256)
    np.testing.assert_array_equal(map_patches(tmp_path / "pieces.h5", pixels.shape), pixels)


def test_a_shard_of_another_shape_is_refused(tmp_path: Path) -> None:
    write_patches(tmp_path / "a.h5", np.zeros((2, 3, 3), np.uint8))
    with pytest.raises(StoreError, match="not this store's"):
        map_patches(tmp_path / "a.h5", (2, 9))
    (tmp_path / "b.h5").write_bytes(b"not HDF5")
    with pytest.raises(StoreError, match=r"b\.h5"):
        map_patches(tmp_path / "b.h5", (2, 9))
