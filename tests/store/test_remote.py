"""Stores at URLs: in memory, and on S3 as moto's server plays it on this machine."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.mining.mine import mine
from hardmine.pipeline.append import append
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Pair
from hardmine.store.location import as_url
from hardmine.store.patches import PatchStore
from hardmine.store.remote import copy_store, open_remote
from hardmine.store.remote_patches import RemotePatchStore
from hardmine.store.rounds import MiningStore


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARDMINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(tmp_path: Path, made_up: Callable) -> PatchStore:
    """Seven items in three shards, with a split, a pair list and a reject."""
    pair = Pair(np.array([0, 1]), np.array([5, 3]), np.array([True, False]))
    made_up(bad={4: "dark"}, pairs={"a": pair})
    ingest("made-up", tmp_path, tmp_path / "store", shard_rows=3, split="by-class:0.5")
    return PatchStore.open(tmp_path / "store")


class Flat(torch.nn.Module):
    """The pixels, as they are, as the descriptor."""

    name, side, dim, unit_norm = "flat", 2, 4, False

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flatten(1)

    def identity(self) -> dict:
        return {"network": "flat", "weights": "0" * 64, "options": {}, "side": 2, "dim": 4}


def same_files(a: Path, b: Path) -> bool:
    def tree(folder: Path) -> dict[str, bytes]:
        files = [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")]
        return {str(p.relative_to(folder)): p.read_bytes() for p in files}

    return tree(a) == tree(b)


def test_a_patch_store_there_and_back(tmp_path: Path, store: PatchStore, everywhere: str) -> None:
    seen: list[tuple[int, int]] = []
    report = copy_store(store.path, f"{everywhere}/a/b", progress=lambda *at: seen.append(at))
    assert report.there == 0
    assert seen[-1][0] == seen[-1][1] > 0
    copy_store(f"{everywhere}/a/b", tmp_path / "back")
    assert same_files(store.path, tmp_path / "back")
    assert PatchStore.open(tmp_path / "back").verify() == []
    assert (
        copy_store(store.path, f"{everywhere}/a/b").there == report.files - 1
    )  # all but the manifest, which is compared


def test_a_patch_store_is_read_where_it_is_shard_by_shard(store: PatchStore, everywhere: str, cache: Path) -> None:
    copy_store(store.path, f"{everywhere}/a")
    far = PatchStore.open(f"{everywhere}/a")
    assert isinstance(far, RemotePatchStore)
    assert far.fingerprint == store.fingerprint
    assert far.label.tolist() == store.label.tolist()
    assert far.rows("train").tolist() == store.rows("train").tolist()
    assert far.pairs().first.tolist() == store.pairs().first.tolist()
    assert far.rejects() == store.rejects()
    assert not list(cache.rglob("*.h5"))
    assert np.array_equal(far.gather(np.array([0])), store.gather(np.array([0])))
    assert [p.name for p in cache.rglob("*.h5")] == ["000000.h5"]
    rows = np.array([5, 0, 3, 5])
    assert np.array_equal(pickle.loads(pickle.dumps(far)).gather(rows), store.gather(rows))
    assert far.verify() == []
    assert [p.name for p in sorted(cache.rglob("*.h5"))] == ["000000.h5", "000001.h5", "000002.h5"]
    assert same_files(far.path, store.path)


def test_a_url_that_became_a_path_is_understood(store: PatchStore, place: str) -> None:
    copy_store(store.path, f"{place}/a")
    assert len(PatchStore.open(Path(f"{place}/a"))) == len(store)
    assert as_url("C:/data") is None
    assert as_url("/data/a:/b") is None
    assert as_url(Path("file:///tmp/x")) == "file:///tmp/x"


def test_the_store_s_later_state_is_copied_and_read_too(
    tmp_path: Path, store: PatchStore, place: str, made_up: Callable
) -> None:
    copy_store(store.path, f"{place}/a")
    before = PatchStore.open(f"{place}/a")
    made_up()
    append("made-up", tmp_path, store.path)
    report = copy_store(store.path, f"{place}/a")
    assert report.there == 4  # the shards, and the pair list; not the shard that the append wrote
    far = PatchStore.open(f"{place}/a")
    assert (len(before), len(far)) == (6, 7)
    rows = np.arange(7)
    assert np.array_equal(far.gather(rows), PatchStore.open(store.path).gather(rows))
    assert np.array_equal(before.gather(rows[:6]), far.gather(rows[:6]))


def test_damage_on_the_way_is_found(tmp_path: Path, store: PatchStore, place: str) -> None:
    copy_store(store.path, f"{place}/a")
    fs, root = fsspec.core.url_to_fs(f"{place}/a")
    whole = fs.cat_file(f"{root}/shards/000001.h5")
    damaged = whole[:-1] + bytes([whole[-1] ^ 1])
    fs.pipe_file(f"{root}/shards/000001.h5", damaged)
    with pytest.raises(StoreError, match=r"shards/000001\.h5 is damaged"):
        PatchStore.open(f"{place}/a").gather(np.arange(6))
    with pytest.raises(StoreError, match=r"shards/000001\.h5 is damaged"):
        copy_store(f"{place}/a", tmp_path / "back")
    with pytest.raises(MissingError):
        PatchStore.open(tmp_path / "back")
    assert not list((tmp_path / "back").rglob(".*.partial"))
    assert copy_store(store.path, f"{place}/a").there == 10  # mended: one of eleven files was written anew
    fs.rm_file(f"{root}/columns/label.npy")
    with pytest.raises(StoreError, match=r"columns/label\.npy is missing"):
        copy_store(f"{place}/a", tmp_path / "again")


def test_a_mining_store_there_and_back(tmp_path: Path, store: PatchStore, everywhere: str) -> None:
    mine(store, tmp_path / "mining", Flat(), split="train", derive=("pairs",))
    copy_store(tmp_path / "mining", f"{everywhere}/m")
    mine(store, tmp_path / "mining", Flat(), split="val", derive=())
    mine(store, tmp_path / "mining", Flat(), split="train", derive=("pairs", "knn"), neighbours=1)
    report = copy_store(tmp_path / "mining", f"{everywhere}/m")
    assert report.store == "mining store, 2 rounds"
    assert report.there > 0
    back = open_remote(f"{everywhere}/m")
    assert same_files(tmp_path / "mining", back)
    rounds, ours = MiningStore(back).rounds(), MiningStore(tmp_path / "mining").rounds()
    assert [r.derived for r in rounds] == [["knn", "pairs"], []]
    for theirs, own in zip(rounds, ours):
        theirs.check_files(checksums=True)
        assert np.array_equal(theirs.descriptors(), own.descriptors())


def test_what_is_no_store_or_another_is_refused(
    tmp_path: Path, store: PatchStore, place: str, made_up: Callable
) -> None:
    with pytest.raises(MissingError, match="no patch store"):
        copy_store(f"{place}/nothing", tmp_path / "back")
    with pytest.raises(MissingError, match="no patch store"):
        PatchStore.open(f"{place}/nothing")
    copy_store(store.path, f"{place}/a")
    made_up(raw_label=np.arange(4))
    ingest("made-up", tmp_path, tmp_path / "other")
    with pytest.raises(StoreError, match="holds another patch store"):
        copy_store(tmp_path / "other", f"{place}/a")
    fs, root = fsspec.core.url_to_fs(f"{place}/mine")
    fs.pipe_file(f"{root}/thesis.tex", b"x")
    with pytest.raises(InputError, match=r"not empty \(thesis\.tex\)"):
        copy_store(store.path, f"{place}/mine")
    with pytest.raises(InputError, match="cannot use nosuch://x"):
        copy_store(store.path, "nosuch://x")


def test_a_killed_copy_goes_on(store: PatchStore, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("hardmine.store.remote.write_small", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            copy_store(store.path, f"{place}/a")
    with pytest.raises(MissingError):
        PatchStore.open(f"{place}/a")
    assert copy_store(store.path, f"{place}/a").there == 11
    assert PatchStore.open(f"{place}/a").verify() == []


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_bucket_that_is_not_there(store: PatchStore, s3_server: str) -> None:
    with pytest.raises(StoreError, match="s3://no-such-bucket/a"):
        copy_store(store.path, "s3://no-such-bucket/a")
