"""The pass over workers: the same round whoever embeds it, half precision, compiling, and growing after an append."""

import json
import multiprocessing
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from distributed import LocalCluster
from mining_world import OPTIONS, SIDE, Tiny, contents, make_store

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.mine import mine
from hardmine.mining.passes import PackedNetwork
from hardmine.pipeline.append import append
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import MiningStore
from hardmine.train.networks import build

SIZES = (3, 1, 9, 2, 5)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store", SIZES)


def grow(store, more, seed=5):
    """Append items of classes `more` to a store of `make_store`."""
    source = store.path.with_name(store.path.name + "-source")
    pixels = np.random.default_rng(seed).integers(0, 256, (len(more), SIDE, SIDE), dtype=np.uint8)
    np.save(source / "patches.npy", np.concatenate([np.load(source / "patches.npy"), pixels]))
    labels = json.loads((source / "labels.json").read_text()) + list(more)
    (source / "labels.json").write_text(json.dumps(labels))
    append("test-patches", source, store.path)
    return PatchStore.open(store.path)


def test_two_processes_one_killed_half_way_give_the_same_round(store, tmp_path):
    here = mine(store, tmp_path / "here", Tiny(sleep=0.02), **OPTIONS)
    killed, seen = [], []

    def kill_half_way(done, total):
        seen.append((done, total))
        if not killed and done >= total // 2:
            worker = next(p for p in multiprocessing.active_children() if "Dask" in p.name)
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)

    there = mine(store, tmp_path / "there", Tiny(sleep=0.02), workers=2, progress=kill_half_way, **OPTIONS)
    assert killed
    assert there.embedded == here.embedded == seen[-1][0] == seen[-1][1]
    assert contents(tmp_path / "there/rounds") == contents(tmp_path / "here/rounds")


def test_on_a_cluster_with_a_relative_path_and_one_load(store, tmp_path, monkeypatch):
    mine(store, tmp_path / "here", Tiny(), derive=(), **OPTIONS)
    loads, original = [], PackedNetwork.load
    monkeypatch.setattr(PackedNetwork, "load", lambda self, *how: loads.append(original(self, *how)) or loads[-1])
    monkeypatch.chdir(tmp_path)
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        from pathlib import Path

        mine(store, Path("there"), Tiny(), derive=(), scheduler=cluster.scheduler_address, **OPTIONS)
    assert contents(tmp_path / "there/rounds") == contents(tmp_path / "here/rounds")
    assert len(loads) > 2
    assert len({id(network) for network in loads}) == 1


def test_a_network_that_cannot_travel_is_refused_before_anything_starts(store, tmp_path):
    network = Tiny()
    network.register_forward_hook(lambda module, given, out: out)
    with pytest.raises(InputError, match=r"network tiny cannot be sent to workers .*workers=0"):
        mine(store, tmp_path / "m", network, workers=1, **OPTIONS)


def test_half_precision_is_another_round_and_stored_as_float32(store, tmp_path):
    full = mine(store, tmp_path / "m", Tiny(), derive=(), **OPTIONS).round
    half = mine(store, tmp_path / "m", Tiny(), derive=(), autocast="bfloat16", **OPTIONS).round
    assert (full.number, half.number, half.key["dtype"]) == (1, 2, "bfloat16")
    assert half.descriptors().dtype == np.float32
    assert 0 < np.abs(full.descriptors() - half.descriptors()).max() < 0.05
    with pytest.raises(UnknownNameError, match="bfloat16"):
        mine(store, tmp_path / "n", Tiny(), autocast="bfloat", **OPTIONS)
    assert not (tmp_path / "n").exists()


def test_a_compiled_network_is_what_is_applied(store, tmp_path, monkeypatch):
    plain = mine(store, tmp_path / "plain", Tiny(), derive=(), **OPTIONS).round
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda network: compiled.append(network) or network)
    network = Tiny()
    found = mine(store, tmp_path / "m", network, derive=(), compile=True, **OPTIONS).round
    assert compiled == [network]
    assert found.attrs["how"]["compile"] is True
    assert "compile" not in plain.attrs["how"]
    np.testing.assert_array_equal(found.descriptors(), plain.descriptors())


@pytest.mark.parametrize("workers", [0, 1])
def test_after_an_append_only_new_rows_are_embedded(store, tmp_path, workers):
    before = mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    grown, network = grow(store, [0, 2, 7, 7]), Tiny()
    after = mine(grown, tmp_path / "m", network, workers=workers, **OPTIONS)
    whole = mine(grown, tmp_path / "whole", Tiny(), **OPTIONS)
    old = set(zip(before.round.entry_row.tolist(), before.round.entry_view.tolist()))
    new = set(zip(after.round.entry_row.tolist(), after.round.entry_view.tolist()))
    assert after.embedded == len(new - old) < len(new) / 2
    if not workers:
        assert network.calls < len(new) / 2  # a batch of one is embedded twice over
    assert whole.embedded == len(new)
    np.testing.assert_allclose(after.round.descriptors(), whole.round.descriptors(), atol=1e-6)
    for name in ("entry_row", "entry_view", "entry_offsets", "entry_constant"):
        np.testing.assert_array_equal(after.round.array(name), whole.round.array(name))
    assert any(f"{len(new & old)} of {len(new)} entries are those of round 1" in line for line in after.messages)
    assert after.round.attrs["how"]["copied_from"] == before.round.attrs["key_hash"]


def test_a_grown_round_of_l2net_has_the_bits_of_a_whole_pass(tmp_path):
    store, network = make_store(tmp_path / "store", SIZES), build("l2net").eval()
    options = {"derive": (), "batch": 4, "shard_rows": 8}
    mine(store, tmp_path / "m", network, **options)
    grown = grow(store, [0, 2, 2, 7, 8])
    after = mine(grown, tmp_path / "m", network, **options)
    whole = mine(grown, tmp_path / "whole", network, **options)
    assert (after.embedded, whole.embedded) == (5, 25)
    np.testing.assert_array_equal(after.round.descriptors(), whole.round.descriptors())


def test_what_is_not_the_same_is_not_copied(store, tmp_path):
    mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    other = make_store(tmp_path / "other", SIZES, seed=1)
    assert mine(other, tmp_path / "m", Tiny(), **OPTIONS).embedded > 20  # other pixels
    grown = grow(store, [0, 1])
    shutil.copytree(tmp_path / "m", tmp_path / "n")
    for changes, network in ((OPTIONS, Tiny(1)), ({**OPTIONS, "batch": 5}, Tiny())):
        result = mine(grown, tmp_path / "m", network, **changes)
        assert result.embedded == len(result.round.entry_row)
    for name in ("000001", "000002"):
        (tmp_path / "n/rounds" / name / "descriptors/c/0/0").unlink()
    result = mine(grown, tmp_path / "n", Tiny(), **OPTIONS)
    assert result.embedded == len(result.round.entry_row)
    assert any("nothing was copied from round 1" in line for line in result.messages)


def test_a_second_append_copies_from_the_nearest_state(store, tmp_path):
    mine(store, tmp_path / "m", Tiny(), derive=(), batch=4, shard_rows=8)
    mine(grow(store, [0, 1]), tmp_path / "m", Tiny(), derive=(), batch=4, shard_rows=8)
    third = mine(grow(store, [3], seed=6), tmp_path / "m", Tiny(), derive=(), batch=4, shard_rows=8)
    assert third.embedded == 1
    assert [r.number for r in MiningStore(tmp_path / "m").rounds()] == [1, 2, 3]
