"""What a patch store promises whatever its shards are: one suite, run against hdf5 and webdataset."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_world import Tiny, make_store
from picture_world import MadeUpPictures, image_file, register
from PIL import Image
from torch.utils.data import DataLoader

from hardmine.errors import InputError, StoreError
from hardmine.mining.embed import embed_entries
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.loading import PatchDataset
from hardmine.store.patches import PatchStore

KINDS = ("hdf5", "webdataset")
ORDER = [2, 0, 5, 1, 3, 6, 4]  # of MadeUp's labels: 007, 7, 7, cat, cat, cat, dog
PICTURE_ORDER = [0, 3, 6, 2, 5, 1, 4]  # of MadeUpPictures' labels: 0 2 1 0 2 1 0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[MadeUpPictures]]:
    return register(monkeypatch)


def make(folder: Path, reader: str = "made-up", **options: Any) -> PatchStore:
    ingest(reader, folder, folder / "store", shard_rows=3, **options)
    return PatchStore.open(folder / "store")


def test_gather_and_stream_give_the_pixels_read(tmp_path: Path, made_up: Callable, kind: str) -> None:
    reader = made_up()
    store = make(tmp_path, shards=kind)
    expected = np.stack([reader.pixels(i) for i in ORDER])
    assert store.manifest.shards_kind == kind
    assert store.pixel_shape == (4, 5)
    rows = np.array([6, 0, 0, 3, 2, 5, 4, 1], np.int32)
    found = store.gather(rows)
    assert (found.dtype, found.flags.writeable) == (np.uint8, True)
    np.testing.assert_array_equal(found, expected[rows])
    streamed = list(store.stream(np.arange(7), 4))
    assert [list(r) for r, _ in streamed] == [[0, 1, 2, 3], [4, 5, 6]]
    np.testing.assert_array_equal(np.concatenate([pixels for _, pixels in streamed]), expected)
    assert store.gather(np.array([], np.int64)).shape == (0, 4, 5)


def test_rows_outside_are_errors(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up()
    store = make(tmp_path, shards=kind)
    for row in (-1, 7):
        with pytest.raises(InputError, match=f"row {row} is not in"):
            store.gather(np.array([row]))


def test_rejects_shorten_their_shard(tmp_path: Path, made_up: Callable, kind: str) -> None:
    reader = made_up(bad={5: "dark", 4: "dark"})
    store = make(tmp_path, shards=kind)
    assert [shard.rows for shard in store.manifest.shards] == [2, 3, 0]
    expected = np.stack([reader.pixels(i) for i in ORDER if i not in (4, 5)])
    np.testing.assert_array_equal(store.gather(np.arange(5)), expected)
    assert [row for row, _ in store.webdataset()] == list(range(5))
    assert store.verify() == []


def test_the_library_streams_rows_with_their_pixels(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up(raw_label=np.array([b"7", b"cat", b"007", b"cat", b"dog", b"7", b"cat"]))
    store = make(tmp_path, shards=kind, split="by-class:0.5", max_per_class=2)
    found = dict(store.webdataset())
    assert list(found) == np.flatnonzero(store.used).tolist()
    np.testing.assert_array_equal(np.stack(list(found.values())), store.gather(np.flatnonzero(store.used)))
    for split in store.split_names:
        assert [row for row, _ in store.webdataset(split)] == store.rows(split).tolist()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [2, 5])
def test_workers_share_the_shards(tmp_path: Path, made_up: Callable, kind: str, workers: int) -> None:
    """More workers than shards: every item once, no error (a public report about webdataset, C43)."""
    made_up()
    store = make(tmp_path, shards=kind)
    found = list(DataLoader(store.webdataset(), batch_size=None, num_workers=workers, multiprocessing_context="fork"))
    assert sorted(row for row, _ in found) == list(range(7))
    for row, pixels in found:
        np.testing.assert_array_equal(pixels, store.gather(np.array([row]))[0])


def test_nodes_share_the_shards(tmp_path: Path, made_up: Callable, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up()
    store = make(tmp_path, shards=kind)
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen = []
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        seen.append([row for row, _ in store.webdataset()])
    assert seen == [[0, 1, 2, 6], [3, 4, 5]]


def test_threads_and_pickled_copies_read_the_same(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up()
    store = make(tmp_path, shards=kind)
    expected = store.gather(np.arange(7))
    copy = pickle.loads(pickle.dumps(store))
    asked = [np.random.default_rng(i).integers(0, 7, 9) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for rows, found in zip(asked, pool.map(copy.gather, asked)):
            np.testing.assert_array_equal(found, expected[rows])


def test_the_same_source_gives_the_same_bytes(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up()
    for name in ("a", "b"):
        ingest("made-up", tmp_path, tmp_path / name, shard_rows=3, shards=kind)
    a, b = PatchStore.open(tmp_path / "a"), PatchStore.open(tmp_path / "b")
    assert a.manifest == b.manifest
    assert a.fingerprint == b.fingerprint
    for entry in a.manifest.files():
        assert (tmp_path / "a" / entry.file).read_bytes() == (tmp_path / "b" / entry.file).read_bytes()


def test_a_store_of_the_other_kind_is_another_ingest(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up()
    make(tmp_path, shards=kind)
    other = next(k for k in KINDS if k != kind)
    with pytest.raises(StoreError, match="differs in: shards"):
        make(tmp_path, shards=other)


def test_an_interrupted_ingest_goes_on(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up(bad={4: "dark"})
    ingest("made-up", tmp_path, tmp_path / "whole", shard_rows=3, shards=kind)
    with pytest.raises(InputError, match="dark"):
        make(tmp_path, shards=kind, on_bad="fail")
    shards = sorted((tmp_path / "store/shards").iterdir())
    damaged = next(path for path in shards if path.name.startswith("000001") and path.suffix != ".json")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    report = ingest("made-up", tmp_path, tmp_path / "store", shard_rows=3, shards=kind)
    assert report.resumed == 1
    for entry in PatchStore.open(tmp_path / "whole").manifest.files():
        assert (tmp_path / "store" / entry.file).read_bytes() == (tmp_path / "whole" / entry.file).read_bytes()


def test_verify_finds_damage_and_names_it(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up()
    store = make(tmp_path, shards=kind)
    calls: list[tuple[int, int]] = []
    assert store.verify(progress=lambda *call: calls.append(call)) == []
    assert calls == [(3, 7), (6, 7), (7, 7)]
    path = store.path / store.manifest.shards[1].file
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"\x89PNG", b"\x89png", 1) if kind == "webdataset" else whole[:-1] + b"\0\0")
    problems = store.verify()
    assert problems[0] == f"{path} is damaged: its SHA-256 is not the one in the manifest"
    if kind == "webdataset":
        (problem,) = problems[1:]
        assert problem.startswith(f"{path}: member 000001000000 (row 3): not an image, or a damaged one")
        assert len(store.verify(decode=False)) == 1
    path.unlink()
    assert store.verify() == [f"{path} is missing"]
    (store.path / "columns/label.npy").unlink()
    assert store.verify()[1] == f"{store.path / 'columns/label.npy'} is missing"


def test_verify_in_processes(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up()
    store = make(tmp_path, shards=kind)
    path = store.path / store.manifest.shards[2].file
    path.write_bytes(b"x" * path.stat().st_size)
    assert store.verify(workers=2) == store.verify()
    with pytest.raises(InputError, match="workers"):
        store.verify(workers=0)


def test_a_missing_index_or_shard_is_found_on_opening(tmp_path: Path, made_up: Callable, kind: str) -> None:
    made_up()
    store = make(tmp_path, shards=kind)
    shard = store.manifest.shards[0]
    (store.path / (shard.index or shard).file).unlink()
    with pytest.raises(StoreError, match="is missing"):
        PatchStore.open(store.path)


def test_a_loader_takes_both(tmp_path: Path, made_up: Callable, kind: str) -> None:
    reader = made_up()
    dataset = PatchDataset(make(tmp_path, shards=kind))
    np.testing.assert_array_equal(dataset[4].numpy(), reader.pixels(ORDER[4]))


def test_phototour_is_the_same_in_both(tmp_path: Path, phototour: Callable) -> None:
    patches = phototour(tmp_path / "src", 40, pairs="0 0 0 1 0 0\n" * 3)
    found = {}
    for kind in KINDS:
        ingest("phototour", tmp_path / "src", tmp_path / kind, shard_rows=16, shards=kind)
        found[kind] = PatchStore.open(tmp_path / kind)
        np.testing.assert_array_equal(found[kind].gather(np.arange(40)), patches)
        np.testing.assert_array_equal(np.stack([p for _, p in found[kind].webdataset()]), patches)
    assert found["hdf5"].fingerprint != found["webdataset"].fingerprint
    columns = [{name: c.sha256 for name, c in store.manifest.columns.items()} for store in found.values()]
    assert columns[0] == columns[1]


def test_a_network_sees_the_same_in_both(tmp_path: Path) -> None:
    make_store(tmp_path / "hdf5")
    ingest("test-patches", tmp_path / "hdf5-source", tmp_path / "webdataset", shards="webdataset", shard_rows=7)
    rows = np.array([0, 11, 3, 3])
    found = [embed_entries(PatchStore.open(tmp_path / kind), rows, None, Tiny()) for kind in KINDS]
    np.testing.assert_array_equal(*found)


# Images


def test_images_of_several_sizes_come_as_a_list(tmp_path: Path, pictures: Callable) -> None:
    reader = pictures()
    store = make(tmp_path, "made-up-pictures")
    assert store.manifest.shards_kind == "webdataset"
    assert store.pixel_shape is None
    expected = reader.pixels(PICTURE_ORDER)
    found = store.gather(np.array([5, 0, 5]))
    assert isinstance(found, list)
    for pixels, row in zip(found, [5, 0, 5]):
        assert (pixels.dtype, pixels.flags.writeable) == (np.uint8, True)
        np.testing.assert_array_equal(pixels, expected[row])
    assert store.gather(np.array([], np.int64)) == []
    for row, pixels in store.webdataset():
        np.testing.assert_array_equal(pixels, expected[row])
    counts = store.manifest.counts
    assert counts["original bytes kept"] == 7
    assert counts["bytes of image files"] == sum(map(len, reader.files))
    assert store.verify() == []


@pytest.mark.parametrize("colour", ["rgb", "grey"])
def test_square_images_are_the_same_in_both(tmp_path: Path, pictures: Callable, kind: str, colour: str) -> None:
    pictures()
    options = {"size": "square:8", "colour": colour}
    store = make(tmp_path, "made-up-pictures", shards=kind, pictures=options)
    ingest("made-up-pictures", tmp_path, tmp_path / "tar", shards="webdataset", pictures=options)
    shape = (8, 8) if colour == "grey" else (8, 8, 3)
    assert store.pixel_shape == shape
    assert store.manifest.pictures == {"size": "square:8", "crop": False, "colour": colour, "encoding": "original"}
    found = store.gather(np.arange(7))
    assert found.shape == (7, *shape)
    np.testing.assert_array_equal(found, PatchStore.open(tmp_path / "tar").gather(np.arange(7)))
    assert store.manifest.counts["sides cut off for a square"] == 6


def test_the_policy_counts_what_it_met(tmp_path: Path, pictures: Callable) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    files = [
        image_file(0, form="JPEG", exif=exif),
        image_file(1),
        image_file(2)[:99],
        image_file(3, (4, 4, 4)),
        b"text",
    ]
    pictures(files=files, boxes=[None, (1, 1, 5, 5), None, None, None], crop=True)
    store = make(tmp_path, "made-up-pictures")
    counts = store.manifest.counts
    assert counts["EXIF orientation applied"] == 1
    assert counts["transparency laid over white"] == 1
    assert counts["cropped to the box"] == 1
    assert counts["encoded anew"] == 3
    assert counts["images rejected: truncated"] == 1
    assert counts["images rejected: not an image, or a damaged one: no known format"] == 1
    assert [source for source, _ in store.rejects()] == [b"photo 2", b"photo 4"]
    assert sorted(p.shape for p in store.gather(np.arange(3))) == [(4, 4, 3), (4, 4, 3), (16, 12, 3)]
    with pytest.raises(InputError, match="photo 2: truncated"):
        ingest("made-up-pictures", tmp_path, tmp_path / "strict", on_bad="fail")


def test_the_datasets_choice_of_cropping_can_be_overruled(tmp_path: Path, pictures: Callable) -> None:
    pictures(files=[image_file(0), image_file(1)], boxes=[(0, 0, 2, 2)] * 2, crop=True)
    assert make(tmp_path, "made-up-pictures", pictures={"crop": False}).gather(np.array([0]))[0].shape == (12, 16, 3)


@pytest.mark.parametrize(
    ("reader", "options", "message"),
    [
        ("made-up", {"pictures": {"size": "square:8"}}, "picture options .*size.* are for images"),
        ("made-up", {"shards": "zip"}, "unknown shard kind 'zip'"),
        ("made-up-pictures", {"shards": "hdf5"}, "hdf5 shards hold images of one size.*square:N"),
        (
            "made-up-pictures",
            {"shards": "hdf5", "pictures": {"size": "square:8", "encoding": "png"}},
            "encoding=png means nothing",
        ),
        ("made-up-pictures", {"pictures": {"sise": "keep"}}, "Did you mean 'size'"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, made_up: Callable, pictures: Callable, reader: str, options: dict[str, Any], message: str
) -> None:
    made_up()
    pictures()
    with pytest.raises(InputError, match=message):
        make(tmp_path, reader, **options)
    assert not (tmp_path / "store").exists()
