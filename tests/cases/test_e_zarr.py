"""bugcases.md D56, E57-E64: zarr stores and their writers."""

import contextlib
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import pytest
import zarr
from mining_world import OPTIONS, Tiny, contents, make_store

from hardmine.errors import LockedError, StoreError
from hardmine.mining.mine import mine, rederive
from hardmine.mining.repair import repair
from hardmine.store.files import write_lock
from hardmine.store.fingerprint import content_key
from hardmine.store.round_writer import begin
from hardmine.store.rounds import MiningStore, Round

KEY = content_key(network={"network": "x", "weights": "1"}, views=None, split="all", patches="p")
HOW = {"batch": 4, "device": "cpu"}


def entries(count):
    return np.arange(count), np.zeros(count, np.int16), np.array([0, count])


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store", (3, 1, 9, 2, 5))


def test_d56_other_weights_are_never_served_old_descriptors(store, tmp_path):
    first = mine(store, tmp_path / "m", Tiny(0), **OPTIONS)
    second = mine(store, tmp_path / "m", Tiny(1), **OPTIONS)
    assert not second.reused
    assert not np.array_equal(first.round.descriptors(), second.round.descriptors())


def test_e57_writers_of_different_shards_lose_nothing(tmp_path):
    with write_lock(tmp_path / "m", "mining store"):
        draft = begin(MiningStore(tmp_path / "m"), KEY, entries(50), 3, HOW, shard_rows=8)
        expected = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)

        def write(start, stop):
            draft.put_shard(start, expected[start:stop], np.zeros(stop - start, bool))

        threads = [threading.Thread(target=write, args=part) for part in draft.shards()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = draft.commit({"network": "x"})
    np.testing.assert_array_equal(done.descriptors(), expected)


@pytest.mark.parametrize("damage", ["half", "empty", "zeros", "missing", "flipped"])
def test_e58_a_damaged_shard_is_seen_and_written_again(tmp_path, damage):
    with write_lock(tmp_path / "m", "mining store"):
        draft = begin(MiningStore(tmp_path / "m"), KEY, entries(20), 3, HOW, shard_rows=8)
        for start, stop in draft.shards():
            draft.put_shard(start, np.full((stop - start, 3), start, np.float32), np.zeros(stop - start, bool))
        path = draft.folder / "descriptors/c/1/0"
        whole = path.read_bytes()
        content = {
            "half": whole[: len(whole) // 2],
            "empty": b"",
            "zeros": bytes(len(whole)),
            "flipped": whole[:5] + bytes([whole[5] ^ 1]) + whole[6:],
        }
        path.unlink() if damage == "missing" else path.write_bytes(content[damage])
        again = begin(MiningStore(tmp_path / "m"), KEY, entries(20), 3, HOW, shard_rows=8)
        assert [again.shard_is_sound(*part) for part in again.shards()] == [True, False, True]
        again.put_shard(8, np.full((8, 3), 8, np.float32), np.zeros(8, bool))
        assert path.read_bytes() == whole


def test_e60_readers_never_fail_while_a_writer_works(store, tmp_path):
    target, seen, stop = MiningStore(tmp_path / "m"), [], threading.Event()

    def read():
        while not stop.is_set():
            seen.append([r.descriptors().shape[0] for r in target.rounds()])

    with ThreadPool(1) as pool:
        reader = pool.apply_async(read)
        for seed in range(4):
            mine(store, tmp_path / "m", Tiny(seed), derive=("pairs",), **OPTIONS)
        stop.set()
        reader.get(timeout=30)
    assert len(seen) > 3
    assert {len(rounds) for rounds in seen} <= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("name", ["descriptors", "knn"])
def test_e60_what_changed_after_a_round_was_opened_is_never_filled_in(store, tmp_path, monkeypatch, name):
    """zarr reads the fill value for a chunk that is not there: NaN descriptors, lists of -1."""
    first = mine(store, tmp_path / "m", Tiny(), **OPTIONS).round
    target = MiningStore(tmp_path / "m")
    lost = target.open(1)
    chunk = lost.folder / name / "c/0/0"
    content = chunk.read_bytes()
    chunk.unlink()
    with pytest.raises(StoreError, match=rf"{name}/c/0/0 .*is missing.*--repair 1"):
        lost.array(name)
    chunk.write_bytes(content)
    np.testing.assert_array_equal(lost.array(name), first.array(name))

    removed, replaced, original = target.open(1), target.open(1), zarr.open_array

    def removing(*args, **kwargs):
        array = original(*args, **kwargs)
        target.prune(0)
        return array

    monkeypatch.setattr(zarr, "open_array", removing)
    with pytest.raises(StoreError, match=r"round 1 .*was removed after it had been opened"):
        removed.array(name)
    monkeypatch.undo()
    assert mine(store, tmp_path / "m", Tiny(1), **OPTIONS).round.number == 1  # of other weights
    with pytest.raises(StoreError, match=r"round 1 .*was removed after it had been opened"):
        replaced.array(name)


def test_e60_lists_derived_anew_are_not_read_as_the_old_ones(store, tmp_path):
    mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    old = MiningStore(tmp_path / "m").open(1)
    new = rederive(tmp_path / "m", 1, derive=("knn",), neighbours=5).round
    with pytest.raises(StoreError, match=r"knn was derived anew .*: open the round again"):
        old.knn()
    assert new.knn()[0].shape[1] == 5
    assert old.pair_distance()[0].shape == new.pair_distance()[0].shape


def test_e60_opening_while_lists_are_derived_anew_gives_the_new_ones(store, tmp_path, monkeypatch):
    mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    original, done = Round.check_files, []

    def late(self, **options):
        if not done:
            done.append(rederive)
            rederive(tmp_path / "m", 1, derive=("knn",), neighbours=5)
        original(self, **options)

    monkeypatch.setattr(Round, "check_files", late)
    assert MiningStore(tmp_path / "m").open(1).knn()[0].shape[1] == 5


def test_e61_a_round_read_in_the_parent_is_read_again_in_forked_workers(store, tmp_path):
    mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    program = """
        import sys
        from torch.utils.data import DataLoader, Dataset
        from hardmine.store.rounds import MiningStore, Round

        class Distances(Dataset):
            def __init__(self, opened):
                self.opened = opened
            def __len__(self):
                return 4
            def __getitem__(self, i):
                self.opened._arrays.clear()  # not served from what the parent has read
                return float(self.opened.pair_distance()[0][i])

        if __name__ == "__main__":
            opened = MiningStore(sys.argv[1]).open(1)
            expected = opened.pair_distance()[0][:4].tolist()
            for context in ("fork", "spawn"):
                loader = DataLoader(Distances(opened), batch_size=None, num_workers=1, multiprocessing_context=context)
                assert list(loader) == expected, context
            print("read")
    """
    script = tmp_path / "loader.py"
    script.write_text(textwrap.dedent(program))
    root = Path(__file__).parents[2]
    command = [sys.executable, str(script), str(tmp_path / "m")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    )
    assert done.stdout.strip() == "read", done.stderr


def test_e63_a_shard_is_written_once(store, tmp_path, monkeypatch):
    from zarr.storage import LocalStore

    written, original = [], LocalStore.set

    async def counting(self, key, value):
        written.append(f"{self.root}/{key}")
        await original(self, key, value)

    monkeypatch.setattr(LocalStore, "set", counting)
    mine(store, tmp_path / "m", Tiny(), derive=(), **OPTIONS)
    shards = [name for name in written if "descriptors/c/" in name]
    assert len(shards) == len(set(shards)) > 2


def test_e64_two_mines_at_once_and_a_killed_one(store, tmp_path):
    program = Path(__file__).parents[1] / "mining_world.py"
    command = [sys.executable, str(program), str(store.path), str(tmp_path / "m"), "5"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            while not (tmp_path / "m/rounds/000001/zarr.json").exists():
                assert process.poll() is None
                time.sleep(0.01)
            with pytest.raises(LockedError, match=f"process {process.pid} on .* since"):
                mine(store, tmp_path / "m", Tiny(1), **OPTIONS)
        finally:
            process.kill()
    assert mine(store, tmp_path / "m", Tiny(1), **OPTIONS).round.number == 2  # the lock died with its owner
    assert [each.number for each in MiningStore(tmp_path / "m").rounds()] == [2]


def test_e64_what_a_dead_writer_s_worker_still_writes_lands_in_no_round(tmp_path):
    """A dask worker elsewhere may be at a shard when the process that sent it dies, and the lock with that."""
    target, other = MiningStore(tmp_path / "m"), KEY | {"patches": "q"}
    with write_lock(target.path, "mining store"):
        dead = begin(target, KEY, entries(20), 3, HOW, shard_rows=8)
    with write_lock(target.path, "mining store"):
        draft = begin(target, other, entries(20), 3, HOW, shard_rows=8)
        with contextlib.suppress(FileNotFoundError):
            dead.put_shard(8, np.full((8, 3), 7, np.float32), np.zeros(8, bool))
        assert not any(draft.shard_is_sound(*part) for part in draft.shards())
    assert target.rounds() == []


def test_e64_a_second_mine_waits_for_no_worker_of_the_first(store, tmp_path):
    """Workers write under their caller's lock: no other writer gets in while they do."""
    seen = []

    def second(done, total):
        if not seen:
            seen.append(done)
            with pytest.raises(LockedError):
                mine(store, tmp_path / "m", Tiny(1), **OPTIONS)

    mine(store, tmp_path / "m", Tiny(), workers=1, progress=second, **OPTIONS)
    assert seen
    MiningStore(tmp_path / "m").open(1).check_files(checksums=True)


@pytest.mark.parametrize("damage", ["half", "empty", "missing", "flipped"])
def test_e58_a_damaged_shard_of_a_committed_round_is_made_again_alone(store, tmp_path, damage):
    opened = mine(store, tmp_path / "m", Tiny(), **OPTIONS).round
    path, whole = opened.folder / "descriptors/c/1/0", contents(opened.folder)
    content = path.read_bytes()
    changed = {"half": content[: len(content) // 2], "empty": b"", "flipped": bytes([content[0] ^ 1]) + content[1:]}
    path.unlink() if damage == "missing" else path.write_bytes(changed[damage])
    result = repair(store, tmp_path / "m", network=Tiny())
    assert ([each.file for each in result.repaired], result.embedded) == (["descriptors/c/1/0"], 8)
    assert contents(opened.folder) == whole
