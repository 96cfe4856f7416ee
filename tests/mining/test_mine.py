"""`mine` from end to end: what is embedded, reused, derived, resumed and refused."""

import errno
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from mining_world import DIM, OPTIONS, Spoilt, Tiny, contents, make_store

from hardmine.errors import DiskError, InputError, LockedError, NumericalError, StoreError, UnknownNameError
from hardmine.mining.embed import embed_entries, embed_patches
from hardmine.mining.mine import mine, rederive
from hardmine.pipeline.pixels import prepare
from hardmine.pipeline.views import Views
from hardmine.store.files import write_lock
from hardmine.store.round_writer import RoundWriter
from hardmine.store.rounds import MiningStore

PROGRAM = Path(__file__).parents[1] / "mining_world.py"


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store", (3, 1, 9, 2, 5))


def test_descriptors_are_those_of_each_entry_alone(store, tmp_path):
    network = Tiny().train()
    seen = []
    result = mine(store, tmp_path / "m", network, progress=lambda done, total: seen.append((done, total)), **OPTIONS)
    assert network.training
    assert network.dropout.training
    found, views = result.round, OPTIONS["views"]
    assert result.embedded == len(found.entry_row) == network.calls == seen[-1][0] == seen[-1][1]
    network.eval()
    for i in range(result.embedded):
        row, view = found.entry_row[i : i + 1], found.entry_view[i : i + 1]
        angle = torch.from_numpy(views.angles(row, view))
        with torch.no_grad():
            alone = network(prepare(torch.from_numpy(store.gather(row)), network.side, angle=angle))
        np.testing.assert_allclose(found.descriptors()[i], alone[0], atol=1e-6)
    assert (store.label[found.entry_row] == found.entry_label).all()


def test_derived_data_against_loops(store, tmp_path):
    found = mine(store, tmp_path / "m", Tiny(), **OPTIONS).round
    x, offsets = found.descriptors().astype(float), found.entry_offsets
    distance, pair_offsets = found.pair_distance()
    for c in range(len(offsets) - 1):
        own = range(offsets[c], offsets[c + 1])
        expected = [np.linalg.norm(x[i] - x[j]) for i in own for j in own if i < j]
        np.testing.assert_allclose(distance[pair_offsets[c] : pair_offsets[c + 1]], expected, atol=1e-6)
    items = found.items
    for lists, other in ((found.knn(), False), (found.knn_other(), True)):
        for i, (rows, distances) in enumerate(zip(*lists)):
            near = []
            for j in items:
                if j == items[i] or (other and found.entry_label[j] == found.entry_label[items[i]]):
                    continue
                near.append((np.linalg.norm(x[items[i]] - x[j]), found.entry_row[j]))
            near = sorted(near)[:3]
            assert rows.tolist() == [row for _, row in near]
            np.testing.assert_allclose(distances, [d for d, _ in near], atol=1e-6)
    rows = found.entry_row[items]
    assert len(found.knn()[0]) == len(rows) == len(store.rows())
    searched = found.index().search(found.descriptors()[items], 3, query_rows=rows)
    np.testing.assert_array_equal(searched.rows, found.knn()[0])


def test_the_second_time_nothing_is_embedded(store, tmp_path):
    first = mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    before, network = contents(tmp_path / "m"), Tiny()
    with write_lock(tmp_path / "m", "mining store"):  # a reader needs no lock
        before = contents(tmp_path / "m")
        again = mine(store, tmp_path / "m", network, **OPTIONS)
        assert contents(tmp_path / "m") == before
    assert (again.reused, again.embedded, network.calls, again.round.number) == (True, 0, 0, first.round.number)
    assert "nothing to embed" in again.messages[0]
    assert again.json()["counts"] == first.json()["counts"]


def test_only_what_is_missing_is_derived(store, tmp_path):
    options = {**OPTIONS, "neighbours": 2}
    mine(store, tmp_path / "m", Tiny(), derive=("pairs",), **options)
    network = Tiny()
    result = mine(store, tmp_path / "m", network, **options)
    assert (result.embedded, network.calls) == (0, 0)
    mine(store, tmp_path / "whole", Tiny(), **options)
    assert contents(tmp_path / "m/rounds") == contents(tmp_path / "whole/rounds")
    shorter = mine(store, tmp_path / "m", network, **{**options, "neighbours": 1})
    assert shorter.round.knn()[0].shape[1] == 2
    longer = mine(store, tmp_path / "m", network, **{**options, "neighbours": 4})
    assert network.calls == 0
    assert any("knn was derived with other options" in line for line in longer.messages)
    np.testing.assert_array_equal(longer.round.knn()[0][:, :2], shorter.round.knn()[0])
    assert longer.round.nearest_class()[0].shape[1] == 4
    MiningStore(tmp_path / "m").open(1).check_files(checksums=True)


def test_what_the_key_covers(tmp_path):
    store = make_store(tmp_path / "store", (3, 2, 9, 2, 5), split="by-class:0.6")
    other = make_store(tmp_path / "other", (3, 2, 9, 2, 5), split="by-class:0.6", seed=1)
    network, options = Tiny(), {"derive": (), "batch": 4, "shard_rows": 8}
    first = mine(store, tmp_path / "m", network, split="train", **options)
    second = mine(store, tmp_path / "m", network, split="val", **options)
    viewed = mine(store, tmp_path / "m", network, split="train", views=Views(per_class=4), **options)
    turned = mine(store, tmp_path / "m", network, split="train", views=Views(per_class=4, seed=1), **options)
    weights = mine(store, tmp_path / "m", Tiny(5), split="train", **options)
    pixels = mine(other, tmp_path / "m", network, split="train", **options)
    found = [first, second, viewed, turned, weights, pixels]
    assert [each.round.number for each in found] == [1, 2, 3, 4, 5, 6]
    assert not set(first.round.entry_row.tolist()) & set(second.round.entry_row.tolist())
    assert set(viewed.round.entry_row.tolist()) == set(first.round.entry_row.tolist())
    with pytest.raises(InputError, match="name the one"):
        mine(store, tmp_path / "m", network, **options)


def test_killed_twice_and_equal_to_an_undisturbed_run(store, tmp_path):
    mine(store, tmp_path / "whole", Tiny(), **OPTIONS)
    shards = [8 * i for i in range(1 + len(MiningStore(tmp_path / "whole").open(1).entry_row) // 8)]
    target = tmp_path / "killed"
    for wait_for in (1, 2):  # kill -9 when that many shards are there
        command = [sys.executable, str(PROGRAM), str(store.path), str(target), "0.15"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                while len(list(target.glob("rounds/000001/descriptors/c/*/0"))) < wait_for:
                    assert process.poll() is None
                    time.sleep(0.01)
            finally:
                process.kill()
        assert MiningStore(target).rounds() == []
    torn = next(iter(sorted(target.glob("rounds/000001/descriptors/c/*/0"))))
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])  # a write that the disk never finished
    result = mine(store, target, Tiny(), **OPTIONS)
    assert 0 < result.embedded < len(result.round.entry_row)
    assert len(shards) > 3
    assert contents(target / "rounds") == contents(tmp_path / "whole/rounds")


def test_killed_while_deriving(store, tmp_path, monkeypatch):
    whole = mine(store, tmp_path / "whole", Tiny(), **OPTIONS)
    import hardmine.mining.derived as module

    original = module.derive_one

    def dies(source, what, **options):
        if what == "centroids":
            raise KeyboardInterrupt
        return original(source, what, **options)

    monkeypatch.setattr(module, "derive_one", dies)
    with pytest.raises(KeyboardInterrupt):
        mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    assert MiningStore(tmp_path / "m").rounds() == []
    asked = []
    monkeypatch.setattr(
        module, "derive_one", lambda source, what, **o: asked.append(what) or original(source, what, **o)
    )
    knn = tmp_path / "m/rounds/000001/knn/c/0/0"
    knn.write_bytes(knn.read_bytes()[:-1])
    network = Tiny()
    result = mine(store, tmp_path / "m", network, **OPTIONS)
    assert (network.calls, result.embedded) == (0, 0)
    assert asked == ["knn", "centroids", "index"]
    assert contents(tmp_path / "m/rounds") == contents(tmp_path / "whole/rounds")
    assert whole.embedded > 0


def test_only_one_writer(store, tmp_path):
    with write_lock(tmp_path / "m", "mining store"), pytest.raises(LockedError, match=r"process \d+ on"):
        mine(store, tmp_path / "m", Tiny(), **OPTIONS)


def test_descriptors_that_are_not_finite_name_rows_and_leave_nothing(store, tmp_path):
    with pytest.raises(NumericalError, match=r"network tiny: 2 of 8 descriptors are not finite \(rows \d+, \d+\)"):
        mine(store, tmp_path / "m", Spoilt("nan"), **OPTIONS)
    assert list((tmp_path / "m/rounds").glob("0*")) == []


def test_collapsed_descriptors_are_no_mining(store, tmp_path):
    with pytest.raises(NumericalError, match="have collapsed"):
        mine(store, tmp_path / "m", Spoilt("constant"), **OPTIONS)
    assert MiningStore(tmp_path / "m").rounds() == []
    allowed = mine(store, tmp_path / "m", Spoilt("constant"), allow_collapsed=True, **OPTIONS)
    assert any("collapsed" in line for line in allowed.messages)
    assert allowed.round.attrs["derived"]["knn"]["ties_cut"] == len(allowed.round.items)
    assert not allowed.round.pair_distance()[0].any()


def test_spread_and_degenerate_patches_are_recorded(tmp_path):
    store = make_store(tmp_path / "store", (3, 1, 9, 2, 5), constant=(4, 7))
    result = mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    x = result.round.descriptors().astype(float)
    assert result.round.attrs["spread"] == pytest.approx(np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean()))
    constant = np.isin(result.round.entry_row, [4, 7])
    assert result.round.attrs["counts"]["degenerate"] == constant.sum() > 1
    np.testing.assert_array_equal(result.round.entry_constant(), constant)
    assert any("degenerate" in line for line in result.messages)


def test_step_is_recorded(store, tmp_path):
    assert mine(store, tmp_path / "m", Tiny(), step=300, **OPTIONS).round.attrs["step"] == 300


def test_bad_arguments_touch_nothing(store, tmp_path):
    with pytest.raises(UnknownNameError, match="pairs"):
        mine(store, tmp_path / "m", Tiny(), derive=("pair",))
    with pytest.raises(InputError, match="neighbours"):
        mine(store, tmp_path / "m", Tiny(), neighbours=0)
    assert not (tmp_path / "m").exists()
    before = contents(store.path)
    with pytest.raises(InputError, match="not a mining store"):
        mine(store, store.path, Tiny())
    assert contents(store.path) == before
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        mine(store, tmp_path / "file", Tiny())
    with pytest.raises(InputError, match="batch"):
        mine(store, tmp_path / "m", Tiny(), batch=0)


def test_a_damaged_committed_round_is_named_until_it_is_repaired_or_deleted(store, tmp_path):
    first = mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    (first.round.folder / "descriptors/c/0/0").unlink()
    with pytest.raises(StoreError, match=r"descriptors/c/0/0 .*missing.*--repair 1.*Delete that round"):
        mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    shutil.rmtree(first.round.folder)
    assert mine(store, tmp_path / "m", Tiny(), **OPTIONS).embedded == first.embedded


def test_derived_again_without_network_and_store(store, tmp_path):
    options = {**OPTIONS, "neighbours": 2}
    mine(store, tmp_path / "m", Tiny(), derive=("pairs",), **options)
    shutil.rmtree(store.path)
    first = rederive(tmp_path / "m", derive=("knn", "centroids"), neighbours=2)
    assert (first.embedded, first.round.derived) == (0, ["centroids", "knn", "pairs"])
    assert first.round.knn()[0].shape[1] == 2
    before = contents(tmp_path / "m")
    assert "nothing to derive" in rederive(tmp_path / "m", 1, derive=("knn",), neighbours=1).messages[0]
    assert contents(tmp_path / "m") == before
    longer = rederive(tmp_path / "m", "1", derive=("knn",), neighbours=5).round
    np.testing.assert_array_equal(longer.knn()[0][:, :2], first.round.knn()[0])
    longer.check_files(checksums=True)
    with pytest.raises(UnknownNameError, match="pairs"):
        rederive(tmp_path / "m", derive=("pair",))


def test_lists_of_another_kind_are_never_replaced_silently(tmp_path):
    pytest.importorskip("faiss")
    store, options = make_store(tmp_path / "store", (20, 10, 30)), {**OPTIONS, "derive": ("knn",)}
    approximate = mine(store, tmp_path / "m", Tiny(), knn_index="HNSW8", **options).round
    record = approximate.attrs["derived"]["knn"]
    assert record["knn_index"] == record["knn_asked"] == "HNSW8"
    assert 0.9 < record["recall"] <= 1
    before = contents(tmp_path / "m/rounds")
    for asked in ("Flat", "HNSW16"):
        with pytest.raises(StoreError, match=rf"found by HNSW8; those asked for \(3, by {asked}\).*--replace"):
            rederive(tmp_path / "m", derive=("knn",), neighbours=3, knn_index=asked)
        with pytest.raises(StoreError, match="--replace"):
            mine(store, tmp_path / "m", Tiny(), knn_index=asked, **options)
    assert rederive(tmp_path / "m", derive=("knn",), neighbours=3).reused  # whatever is there
    assert contents(tmp_path / "m/rounds") == before
    longer = rederive(tmp_path / "m", derive=("knn",), neighbours=4).round
    assert longer.attrs["derived"]["knn"]["knn_index"] == "HNSW8"  # longer lists of the same kind
    exact = rederive(tmp_path / "m", derive=("knn",), neighbours=4, knn_index="Flat", replace=True).round
    assert "knn_index" not in exact.attrs["derived"]["knn"]
    whole = mine(store, tmp_path / "whole", Tiny(), **{**options, "neighbours": 4}).round
    np.testing.assert_array_equal(exact.knn()[0], whole.knn()[0])
    assert rederive(tmp_path / "m", derive=("knn",), neighbours=4, knn_index="HNSW8").round.attrs == exact.attrs


def test_pair_distances_of_large_classes_go_through_a_file(store, tmp_path, monkeypatch):
    whole = mine(store, tmp_path / "whole", Tiny(), **OPTIONS)
    monkeypatch.setattr("hardmine.mining.derive.MOST_IN_MEMORY", 64)
    monkeypatch.setattr("hardmine.mining.derive.LARGE_CLASS", 4)
    kinds, original = [], RoundWriter.put

    def put(self, name, values, fill=None):
        kinds.extend([type(values)] if name == "pair_distance" else [])
        original(self, name, values, fill)

    monkeypatch.setattr(RoundWriter, "put", put)
    found = mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    assert kinds == [np.memmap]
    assert contents(found.round.folder) == contents(whole.round.folder)


def test_inspect_says_sizes_recall_and_damage(store, tmp_path):
    from hardmine.protocols.inspect import inspect

    result = mine(store, tmp_path / "m", Tiny(), index="HNSW8", **OPTIONS)
    files = [p for p in result.round.folder.rglob("*") if p.is_file() and p.parent != result.round.folder]
    line = inspect(tmp_path / "m")["rounds"][0]
    assert line["bytes"] == sum(p.stat().st_size for p in files)
    assert line["damaged files"] == []
    assert line["recall"] == {"index (recall)": result.round.attrs["derived"]["index"]["recall"]}
    (result.round.folder / "descriptors/c/0/0").unlink()
    found = inspect(tmp_path / "m")
    assert found["rounds"][0]["damaged files"] == ["descriptors/c/0/0 is missing"]
    assert [line["derived"] for line in found["derived"]] == ["centroids", "index", "knn", "pairs"]
    assert found["keys"][0]["entries embedded"] == result.embedded


def test_embedding_outside_a_round(store):
    network, rows = Tiny(), np.array([3, 3, 0])
    found = embed_entries(store, rows, np.array([0, 1, 0], np.int16), network, views=Views(), batch=2)
    plain = embed_entries(store, rows, None, network)
    assert found.shape == (3, DIM)
    assert np.abs(found[1] - found[0]).max() > 1e-3
    np.testing.assert_allclose(plain[[0, 2]], found[[0, 2]], atol=1e-6)
    np.testing.assert_allclose(embed_patches(store.gather(rows), network), plain, atol=1e-6)
    with pytest.raises(InputError, match="view table"):
        embed_entries(store, rows, np.array([0, 1, 0]), network)
    assert embed_entries(store, rows[:0], None, network).shape == (0, DIM)
    network.dim = DIM + 1
    with pytest.raises(InputError, match=r"gave \(3, 6\)"):
        embed_entries(store, rows, None, network)


def test_a_full_disk_is_said_and_the_next_run_goes_on(store, tmp_path, monkeypatch):
    from zarr.storage import LocalStore

    mine(store, tmp_path / "whole", Tiny(), **OPTIONS)
    original = LocalStore.set

    async def full(self, key, value):
        if "descriptors/c/2" in f"{self.root}/{key}":
            raise OSError(errno.ENOSPC, "No space left on device")
        await original(self, key, value)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "set", full)
        with pytest.raises(DiskError, match="Make room"):
            mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    assert MiningStore(tmp_path / "m").rounds() == []
    result = mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    assert result.embedded == len(result.round.entry_row) - 16
    assert contents(tmp_path / "m/rounds") == contents(tmp_path / "whole/rounds")
