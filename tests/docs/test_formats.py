"""`docs/formats.md`, held to what is written: stores read as that page says, without any of hardmine's readers."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mining_world import Tiny, make_store
from PIL import Image

from hardmine.mining.mine import mine
from hardmine.pipeline.append import append
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.views import Views
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import MiningStore

PAGE = Path(__file__).parents[2] / "docs/formats.md"


# A reader of patch stores, as the page describes them


class Patches:
    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        assert self.manifest["format"] == 1
        self.columns = {name: self.npy(entry) for name, entry in self.manifest["columns"].items()}

    def content(self, entry: dict[str, Any]) -> bytes:
        content = (self.folder / entry["file"]).read_bytes()
        assert len(content) == entry["bytes"]
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        return content

    def npy(self, entry: dict[str, Any]) -> np.ndarray:
        values = np.load(io.BytesIO(self.content(entry)), allow_pickle=False)
        if "dtype" in entry:
            assert values.dtype.str == entry["dtype"]
        return values

    def items(self) -> list[np.ndarray]:
        """The pixels of every row."""
        found: list[np.ndarray] = []
        for number, shard in enumerate(self.manifest["shards"]):
            content = self.content(shard)
            before = len(found)
            if self.manifest["shards_kind"] == "hdf5":
                assert shard["index"] is None
                found += self.hdf5(content, shard["rows"])
            else:
                found += self.tar(content, self.npy(shard["index"]), number)
            assert len(found) - before == shard["rows"]
        assert len(found) == self.manifest["rows"]
        return found

    def hdf5(self, content: bytes, rows: int) -> list[np.ndarray]:
        with h5py.File(io.BytesIO(content), "r") as file:
            assert list(file) == ["patches"]
            dataset = file["patches"]
            assert (dataset.dtype, dataset.shape) == (np.uint8, (rows, *self.manifest["pixel_shape"]))
            assert (dataset.chunks, dataset.compression, len(dataset.attrs)) == (None, None, 0)
            offset = dataset.id.get_offset()
        if rows == 0:
            assert offset is None
            return []
        size = rows * math.prod(self.manifest["pixel_shape"])
        mapped = np.frombuffer(content, np.uint8, size, offset)
        return list(mapped.reshape(rows, *self.manifest["pixel_shape"]))

    def tar(self, content: bytes, index: np.ndarray, number: int) -> list[np.ndarray]:
        assert (index.dtype, index.shape[1:]) == (np.int64, (2,))
        assert len(content) % 10240 == 0
        found = []
        with tarfile.open(fileobj=io.BytesIO(content)) as file:
            members = file.getmembers()
            assert len(members) == len(index)
            for i, member in enumerate(members):
                assert re.fullmatch(f"{number:06}{i:06}\\.(jpg|png|webp|bmp|tif|gif|pbm|pgm|ppm)", member.name)
                assert (member.mode, member.uid, member.gid, member.mtime) == (0o644, 0, 0, 0)
                offset, length = index[i].tolist()
                image = content[offset : offset + length]
                assert file.extractfile(member).read() == image  # type: ignore[union-attr]
                found.append(np.array(Image.open(io.BytesIO(image)).convert("L" if self.grey else "RGB")))
        return found

    @property
    def grey(self) -> bool:
        shape = self.manifest["pixel_shape"]
        return len(shape) == 2 if shape is not None else self.manifest["pictures"]["colour"] == "grey"

    def split(self, name: str) -> np.ndarray:
        code = self.manifest["splits"].index(name)
        return np.flatnonzero(self.columns["used"] & (self.columns["split"] == code))

    def of_class(self, c: int) -> np.ndarray:
        label = self.columns["label"]
        order = np.argsort(label, kind="stable")
        offsets = np.concatenate([[0], np.cumsum(np.bincount(label, minlength=self.manifest["classes"]))])
        return order[offsets[c] : offsets[c + 1]]

    def rejects(self) -> list[list[str]]:
        text = self.content(self.manifest["rejects"]).decode("utf-8", "surrogateescape")
        return list(csv.reader(io.StringIO(text, newline="")))

    def fingerprint(self) -> str:
        columns = self.manifest["columns"]
        content = {
            "shards": [shard["sha256"] for shard in self.manifest["shards"]],
            "columns": {name: columns[name]["sha256"] for name in ("label", "used", "split") if name in columns},
            "splits": self.manifest["splits"] or ["all"],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def agree(read: Patches, store: PatchStore) -> None:
    """What is read by the page against what hardmine reads."""
    assert read.manifest["rows"] == len(store)
    for mine_, theirs in zip(read.items(), store.gather(np.arange(len(store))), strict=True):
        np.testing.assert_array_equal(mine_, theirs)
    for name, values in read.columns.items():
        if name != "split":
            there = getattr(store, name) if name in ("label", "raw_label", "source", "used") else store.column(name)
            np.testing.assert_array_equal(values, there)
    assert set(read.columns) <= set(store.manifest.columns)
    for name in read.manifest["splits"]:
        np.testing.assert_array_equal(read.split(name), store.rows(name))
    for c in range(store.num_classes):
        there = store.class_order[store.class_offsets[c] : store.class_offsets[c + 1]]
        np.testing.assert_array_equal(read.of_class(c), there)
    for entry in read.manifest["pairs"]:
        table, pairs = read.npy(entry), store.pairs(entry["name"])
        assert (table.dtype, table.shape) == (np.int64, (entry["rows"], 3))
        np.testing.assert_array_equal(table, np.column_stack([pairs.first, pairs.second, pairs.match]))
        assert entry["lost"] == pairs.lost
    rejects = [[s.decode("utf-8", "surrogateescape"), reason] for s, reason in store.rejects()]
    assert read.rejects() == [["source", "reason"], *rejects]
    assert read.fingerprint() == store.fingerprint
    source = json.dumps(read.manifest["source"], sort_keys=True)
    assert hashlib.sha256(source.encode()).hexdigest() == read.manifest["source_key"]


@pytest.mark.parametrize("shards", ["hdf5", "webdataset"])
def test_patches(tmp_path: Path, phototour: Callable, shards: str) -> None:
    patches = phototour(tmp_path / "src", 300, pairs="0 0 0 2 0 0\n299 99 0 3 1 0\n")
    ingest("phototour", tmp_path / "src", tmp_path / "store", shards=shards, shard_rows=70, split="by-class:0.5")
    read = Patches(tmp_path / "store")
    assert len(read.manifest["shards"]) == 5
    np.testing.assert_array_equal(np.array(read.items()), patches)
    assert read.columns["image"].dtype == np.int64
    assert (read.columns["frame"].dtype, read.columns["frame"].shape) == (np.float32, (300, 4))
    agree(read, PatchStore.open(tmp_path / "store"))


def test_rejects_leave_short_and_empty_shards_and_classes(tmp_path: Path, made_up: Callable) -> None:
    made_up(
        bad={0: 'broken, so "to speak"', 2: "broken", 5: "broken"}, source=np.array([b"\xff,%d" % i for i in range(7)])
    )
    ingest("made-up", tmp_path, tmp_path / "store", shard_rows=1)
    read = Patches(tmp_path / "store")
    assert [shard["rows"] for shard in read.manifest["shards"]] == [0, 0, 0, 1, 1, 1, 1]
    assert read.manifest["classes"] == 4
    assert [len(read.of_class(c)) for c in range(4)] == [0, 0, 3, 1]
    assert ["\udcff,0", 'broken, so "to speak"'] in read.rejects()
    agree(read, PatchStore.open(tmp_path / "store"))


def make_photographs(folder: Path, names: list[str]) -> None:
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (20 + seed, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)


@pytest.mark.parametrize("colour", ["rgb", "grey"])
def test_images_of_several_sizes(tmp_path: Path, colour: str) -> None:
    make_photographs(tmp_path / "src", ["train/a/1.png", "train/a/2.jpg", "train/b/3.png", "test/c/4.bmp"])
    options = {"depth": 2, "split_depth": 1}
    ingest("folder", tmp_path / "src", tmp_path / "store", options=options, pictures={"colour": colour}, shard_rows=3)
    read = Patches(tmp_path / "store")
    assert read.manifest["pixel_shape"] is None
    assert (read.manifest["shards_kind"], read.manifest["splits"]) == ("webdataset", ["train", "test"])
    assert [item.shape[:2] for item in read.items()] == [(20, 30), (21, 30), (22, 30), (23, 30)]
    if colour == "rgb":
        offset, length = read.npy(read.manifest["shards"][0]["index"])[0].tolist()
        content = read.content(read.manifest["shards"][0])[offset : offset + length]
        assert content == (tmp_path / "src/train/a/1.png").read_bytes()  # kept as it was
    agree(read, PatchStore.open(tmp_path / "store"))


def test_an_append_moves_no_row(tmp_path: Path) -> None:
    make_photographs(tmp_path / "src", ["b/1.png", "d/2.png", "b/3.png"])
    ingest("folder", tmp_path / "src", tmp_path / "store")
    before = Patches(tmp_path / "store")
    make_photographs(tmp_path / "src", ["b/4.png", "a/5.png", "d/6.png", "b/7.png"])
    append("folder", tmp_path / "src", tmp_path / "store")
    read = Patches(tmp_path / "store")
    assert read.manifest["shards"][: len(before.manifest["shards"])] == before.manifest["shards"]
    for name, values in before.columns.items():
        np.testing.assert_array_equal(read.columns[name][: len(values)], values)
    assert read.columns["label"].tolist() == [0, 0, 1, 0, 0, 1, 2]
    (added,) = read.manifest["appends"]
    assert (added["first_row"], added["rows"], added["first_shard"]) == (3, 4, len(before.manifest["shards"]))
    assert read.of_class(0).tolist() == [0, 1, 3, 4]
    agree(read, PatchStore.open(tmp_path / "store"))


# A reader of mining stores, as the page describes them


def crc32c(content: bytes) -> int:
    """Castagnoli's polynomial, bit by bit."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checked(content: bytes) -> bytes:
    """Bytes without the CRC-32C at their end."""
    assert crc32c(content[:-4]) == int.from_bytes(content[-4:], "little")
    return content[:-4]


def zarr_array(folder: Path) -> np.ndarray:
    """A zarr v3 array as the page says a round has them."""
    about = json.loads((folder / "zarr.json").read_text())
    shape, chunk = about["shape"], about["chunk_grid"]["configuration"]["chunk_shape"]
    assert about["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}}
    dtype = np.dtype(about["data_type"]).newbyteorder("<")
    result = np.full(shape, 77, dtype)
    grid = [range(-(-length // step)) for length, step in zip(shape, chunk)]
    for place in itertools.product(*grid):
        content = folder.joinpath("c", *map(str, place)).read_bytes()
        codec = about["codecs"][0]
        if codec["name"] == "sharding_indexed":
            values = sharded(content, chunk, codec["configuration"]["chunk_shape"], dtype)
        else:
            values = np.frombuffer(checked(content), dtype).reshape(chunk)
        region = tuple(slice(p * step, min((p + 1) * step, n)) for p, step, n in zip(place, chunk, shape))
        result[region] = values[tuple(slice(0, r.stop - r.start) for r in region)]
    return result


def sharded(content: bytes, shape: list[int], inner: list[int], dtype: np.dtype) -> np.ndarray:
    count = shape[0] // inner[0]
    index = np.frombuffer(checked(content[-16 * count - 4 :]), "<u8").reshape(count, 2)
    values = np.full(shape, np.nan, dtype)
    for i, (offset, length) in enumerate(index.tolist()):
        if offset != 2**64 - 1:
            part = checked(content[offset : offset + length])
            values[i * inner[0] : (i + 1) * inner[0]] = np.frombuffer(part, dtype).reshape(inner)
        else:
            assert length == 2**64 - 1
    return values


def angle(row: int, view: int, max_degrees: float, seed: int) -> float:
    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    u = (mix((row * 65536 + view + mix((seed + 0x9E3779B97F4A7C15) % 2**64)) % 2**64) >> 11) / 2**53
    return max_degrees * math.pi / 180 * (2 * u - 1)


@pytest.mark.parametrize("shard_rows", [65536, 8])
def test_a_round(tmp_path: Path, shard_rows: int) -> None:
    store = make_store(tmp_path / "store", split="by-class:0.6")
    views = Views(per_class=4, seed=3)
    mine(store, tmp_path / "mining", Tiny(), split="train", views=views, neighbours=3, step=7, shard_rows=shard_rows)
    folder = tmp_path / "mining/rounds/000001"
    for group in (folder.parent.parent, folder.parent, folder):
        about = json.loads((group / "zarr.json").read_text())
        assert (about["zarr_format"], about["node_type"]) == (3, "group")
    attributes = about["attributes"]
    assert (attributes["format"], attributes["committed"], attributes["step"]) == (1, True, 7)
    arrays = {name: zarr_array(folder / name) for name in attributes["files"]}
    named = {path for files in attributes["files"].values() for path in files}
    assert named == {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {"zarr.json"}
    for files in attributes["files"].values():
        for path, (size, crc) in files.items():
            content = (folder / path).read_bytes()
            assert (len(content), zlib.crc32(content)) == (size, crc)
    key = attributes["key"]
    assert key["patches"] == Patches(tmp_path / "store").fingerprint()
    canonical = json.dumps(key, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(canonical.encode()).hexdigest() == attributes["key_hash"]
    assert (key["split"], key["views"]) == ("train", {"per_class": 4, "max_degrees": 30.0, "seed": 3})
    round_ = MiningStore(tmp_path / "mining").open(1)
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, round_.array(name))
        assert values.dtype == round_.array(name).dtype
    check_meaning(arrays, attributes, store)


def check_meaning(arrays: dict[str, np.ndarray], attributes: dict[str, Any], store: PatchStore) -> None:
    """The arrays against slow definitions of what the page says they mean."""
    row, view, offsets, x = (arrays[n] for n in ("entry_row", "entry_view", "entry_offsets", "descriptors"))
    label = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    np.testing.assert_array_equal(store.label[row], label)
    assert list(zip(label, view != 0, view, row)) == sorted(zip(label, view != 0, view, row))
    np.testing.assert_array_equal(np.sort(row[view == 0]), store.rows("train"))
    assert attributes["counts"]["entries"] == len(row)
    assert attributes["counts"]["items"] == int((view == 0).sum())
    options = attributes["key"]["views"]
    expected = [angle(int(r), int(v), options["max_degrees"], options["seed"]) if v else 0.0 for r, v in zip(row, view)]
    assert np.allclose(Views(**options).angles(row, view), expected, atol=1e-7)

    def distance(i: int, j: int) -> float:
        return float(np.linalg.norm(x[i].astype(float) - x[j]))

    for c in range(store.num_classes):
        members = range(offsets[c], offsets[c + 1])
        pairs = [distance(i, j) for i, j in itertools.combinations(members, 2)]
        start, stop = arrays["pair_offsets"][c : c + 2]
        np.testing.assert_allclose(arrays["pair_distance"][start:stop], pairs, atol=1e-5)
        centroid = arrays["class_centroid"][c]
        assert np.isnan(centroid).all() if not members else np.allclose(centroid, x[members].mean(0), atol=1e-6)
    items = np.flatnonzero(view == 0)
    for line, i in enumerate(items):
        for name, among in (("knn", items), ("knn_other", items[label[items] != label[i]])):
            near = sorted((distance(i, j), int(row[j])) for j in among if j != i)[:3]
            listed = arrays[name][line].tolist()
            assert listed == [r for _, r in near] + [-1] * (3 - len(near))
            np.testing.assert_allclose(arrays[f"{name}_distance"][line][: len(near)], [d for d, _ in near], atol=1e-5)
            assert np.isnan(arrays[f"{name}_distance"][line][len(near) :]).all()


def test_the_page_names_what_is_written(tmp_path: Path) -> None:
    """Every key of a manifest and of a round's attributes, and every array, stands in the page."""
    text = PAGE.read_text("utf-8")
    store = make_store(tmp_path / "store", split="by-class:0.6")
    result = mine(store, tmp_path / "mining", Tiny(), split="train", neighbours=2)
    attributes = result.round.attrs
    manifest = Patches(tmp_path / "store").manifest
    names = [*manifest, *manifest["shards"][0], *manifest["columns"], *attributes, *attributes["files"]]
    names += [*attributes["derived"], *attributes["counts"], *attributes["key"], *attributes["how"]]
    names += [key for record in attributes["derived"].values() for key in record if not key.endswith("_other")]
    assert [name for name in names if f"`{name}`" not in text] == []
