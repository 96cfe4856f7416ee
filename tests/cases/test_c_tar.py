"""Public reports about tar shards, by their number in our log: those that concern what we write and how we read it."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset as wds
from picture_world import MadeUpPictures, image_file, register
from PIL import Image
from torch.utils.data import DataLoader

from hardmine.errors import StoreError
from hardmine.pipeline.ingest import ingest
from hardmine.store.decode import decode
from hardmine.store.patches import PatchStore
from hardmine.store.webdataset import member_key


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[MadeUpPictures]]:
    return register(monkeypatch)


def tars(store: PatchStore) -> list[str]:
    return [str(store.path / shard.file) for shard in store.manifest.shards]


def make(folder: Path, reader: str = "made-up-pictures", **options: Any) -> PatchStore:
    ingest(reader, folder, folder / "store", shards="webdataset", **{"shard_rows": 3, **options})
    return PatchStore.open(folder / "store")


@pytest.mark.parametrize(
    "name", [b"22.05.png", b"a/b.c/1.tar.jpg", b"x" * 300 + b".jpg", "église/été.png".encode(), b"caf\xe9 '.png"]
)
def test_c37_c50_a_member_has_a_short_safe_key_and_its_raw_name_in_the_column(
    tmp_path: Path, pictures: Callable, name: bytes
) -> None:
    pictures(files=[image_file(0), image_file(1)], names=[name, b"other"])
    store = make(tmp_path)
    assert name in store.source.tolist()
    names = subprocess.run(["tar", "tf", *tars(store)], check=True, capture_output=True, text=True).stdout.split()
    assert names == ["000000000000.png", "000000000001.png"]
    samples = list(wds.WebDataset(tars(store), shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == ["000000000000", "000000000001"]
    assert all({"png"} == {k for k in sample if not k.startswith("__")} for sample in samples)


def test_c37_the_library_decodes_our_members_to_our_pixels(tmp_path: Path, pictures: Callable) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    files = [image_file(0, form="JPEG"), image_file(1, (9, 9)), image_file(2, exif=exif), image_file(3, (5, 6, 4))]
    pictures(files=files)
    store = make(tmp_path)
    row = 0
    for sample in wds.WebDataset(tars(store), shardshuffle=False).decode("rgb8"):
        pixels = next(value for key, value in sample.items() if not key.startswith("__"))
        np.testing.assert_array_equal(pixels, store.gather(np.array([row]))[0])
        row += 1
    assert row == 4


def test_c39_keys_are_unique_in_the_whole_store(tmp_path: Path, pictures: Callable) -> None:
    pictures(names=[b"%d/a.jpg" % i for i in range(7)])
    names = []
    for tar in tars(make(tmp_path)):
        with tarfile.open(tar) as opened:
            names += opened.getnames()
    keys = [re.sub(r"[.].*", "", name) for name in names]
    assert len(set(keys)) == 7
    assert keys == [member_key(shard, place) for shard, rows in enumerate([3, 3, 1]) for place in range(rows)]


def test_c39_a_member_that_comes_twice_is_named(tmp_path: Path, pictures: Callable) -> None:
    pictures(files=[image_file(0), image_file(1)])
    store = make(tmp_path)
    with tarfile.open(tars(store)[0]) as tar:
        (first, _), content = tar.getmembers(), io.BytesIO(image_file(0))
    with tarfile.open(tars(store)[0], "w") as tar:
        for _ in range(2):
            content.seek(0)
            first.size = len(content.getvalue())
            tar.addfile(first, content)
    with pytest.raises(StoreError, match=r"000000.tar cannot be read after 0 of 2 members: .*duplicate file name"):
        list(store.webdataset())
    assert any("member 000000000001 is not where the index says" in line for line in store.verify())


def test_c41_an_exception_in_the_middle_leaves_no_shard(tmp_path: Path, pictures: Callable) -> None:
    class Broken(Exception):
        pass

    def read(self: MadeUpPictures, numbers: np.ndarray) -> Iterator[Any]:
        for number, picture in MadeUpPictures.read(self, numbers):
            if number == 5:  # the second shard's second item
                raise Broken
            yield number, picture

    reader = pictures()
    whole = make(tmp_path / "whole").path
    reader.read = read  # type: ignore[method-assign]
    with pytest.raises(Broken):
        make(tmp_path)
    assert sorted(p.name for p in (tmp_path / "store/shards").iterdir()) == [
        "000000.idx.npy",
        "000000.json",
        "000000.tar",
    ]
    del reader.read
    assert ingest("made-up-pictures", tmp_path, tmp_path / "store", shard_rows=3).resumed == 1
    for name in ("000000.tar", "000001.tar", "000002.tar", "000001.idx.npy"):
        assert (tmp_path / "store/shards" / name).read_bytes() == (whole / "shards" / name).read_bytes()


@pytest.mark.parametrize("cut", ["in a member", "between members", "to nothing"])
def test_c42_a_cut_tar_is_named_and_its_members_counted(tmp_path: Path, pictures: Callable, cut: str) -> None:
    pictures()
    store = make(tmp_path)
    path = Path(tars(store)[1])
    content = path.read_bytes()
    second = content.index(b"000001000001.") + (600 if cut == "in a member" else 0)
    path.write_bytes(b"" if cut == "to nothing" else content[:second])
    with pytest.raises(StoreError, match=r"000001.tar has \d+ bytes, the manifest says \d+"):
        PatchStore.open(store.path)
    with pytest.raises(StoreError, match=r"000001.tar .*after [01] of 3 members"):
        list(store.webdataset())
    problems = store.verify()
    assert "000001.tar is damaged: its SHA-256" in problems[0]
    assert all("000001.tar" in line for line in problems)
    with pytest.raises(StoreError, match=r"000001.tar ends before"):
        store.gather(np.arange(7))
    assert len(store.gather(np.array([0, 1, 2, 6]))) == 4  # the other shards are as they were


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("shard_rows", [4, 100])
def test_c43_fewer_shards_or_items_than_workers(tmp_path: Path, pictures: Callable, shard_rows: int) -> None:
    """Also with processes that start afresh; forked ones are in tests/store/test_shard_kinds.py."""
    pictures()
    store = make(tmp_path, shard_rows=shard_rows)
    found = list(DataLoader(store.webdataset(), batch_size=None, num_workers=4, multiprocessing_context="spawn"))
    assert sorted(row for row, _ in found) == list(range(7))


def test_c45_ranks_and_their_workers_see_disjoint_items(
    tmp_path: Path, made_up: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(raw_label=np.arange(20) // 2)
    store = make(tmp_path, "made-up", shard_rows=2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    seen: list[list[int]] = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        loader = DataLoader(store.webdataset(), batch_size=None, num_workers=2, multiprocessing_context="fork")
        seen.append([row for row, _ in loader])
    rows = [row for part in seen for row in part]
    assert len(rows) == len(set(rows)) == 20
    assert all(seen)


def test_c46_a_stream_draws_nothing_so_epochs_and_workers_share_no_seed(tmp_path: Path, made_up: Callable) -> None:
    """Random numbers belong to the samplers and transforms, which draw by (seed, step): tests/train/test_loading.py."""
    made_up(raw_label=np.arange(12) // 2)
    stream = make(tmp_path, "made-up", shard_rows=2).webdataset()
    state = np.random.get_state()[1].tolist()  # noqa: NPY002  (the state that a library might have touched)
    epochs = [[row for row, _ in DataLoader(stream, batch_size=None, num_workers=n)] for n in (0, 0, 1)]
    assert epochs == [list(range(12))] * 3
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


def test_c47_a_batch_mixes_classes_whatever_shard_they_lie_in(tmp_path: Path, made_up: Callable) -> None:
    """Shards hold one class each; batches are made of row numbers, and the sharding changes no pixel of them."""
    reader = made_up(raw_label=np.arange(16) // 4)
    rows = np.random.default_rng(0).permutation(16)
    for shard_rows in (4, 5, 16):
        store = make(tmp_path / str(shard_rows), "made-up", shard_rows=shard_rows)
        assert len(set(store.label[rows[:8]])) > 2
        np.testing.assert_array_equal(store.gather(rows), np.stack([reader.pixels(row) for row in rows]))


def test_c49_the_overhead_of_small_members_is_printed_and_patches_go_elsewhere(
    tmp_path: Path, made_up: Callable
) -> None:
    made_up(raw_label=np.zeros(200, np.int64))
    store = make(tmp_path, "made-up", shard_rows=200)
    counts = store.manifest.counts
    written = sum(Path(tar).stat().st_size for tar in tars(store))
    assert counts["bytes of image files"] + counts["bytes of tar headers and padding"] == written
    assert 200 * 512 < counts["bytes of tar headers and padding"] < 200 * 1024 + 20480
    ingest("made-up", tmp_path, tmp_path / "default")
    assert PatchStore.open(tmp_path / "default").manifest.shards_kind == "hdf5"


def test_c50_every_header_is_plain_ustar(tmp_path: Path, pictures: Callable) -> None:
    pictures(names=[b"p" * 300 + b"%d" % i for i in range(7)])
    for tar in tars(make(tmp_path)):
        with tarfile.open(tar) as opened:
            for member in opened:
                assert member.type == tarfile.REGTYPE
                assert not member.pax_headers
                assert member.offset_data - member.offset == 512
                assert decode(opened.extractfile(member).read(), "rgb").ndim == 3  # type: ignore[union-attr]
