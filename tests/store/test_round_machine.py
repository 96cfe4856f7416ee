"""Rounds through any order of create, write, kill, commit, derive, damage, repair, prune: a reader never gets a wrong
or partial round."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hardmine.errors import MissingError, StoreError
from hardmine.store.files import write_lock
from hardmine.store.fingerprint import content_key, key_hash
from hardmine.store.round_writer import RoundWriter, begin
from hardmine.store.rounds import MiningStore

COUNT, DIM, SHARD = 20, 3, 8
ENTRIES = (np.arange(COUNT), np.zeros(COUNT, np.int16), np.array([0, 12, COUNT]))
HOW = {"batch": 4, "device": "cpu"}


def key_of(seed):
    network = {"network": "made-up", "weights": str(seed), "dim": DIM}
    return content_key(network=network, views=None, split="all", patches="p")


def descriptors_of(seed):
    return np.random.default_rng(seed).standard_normal((COUNT, DIM)).astype(np.float32)


def pairs_of(seed):
    return {"pair_distance": descriptors_of(seed)[:, 0], "pair_offsets": np.array([0, 15, COUNT])}


class Rounds(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = MiningStore(self.folder / "m")
        self.lock = self.writer = self.seed = None
        self.committed = {}  # number -> (seed, whether pairs were derived)
        self.damaged = {}  # number -> files

    def teardown(self):
        if self.lock is not None:
            self.lock.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    def path(self, number):
        return self.store.path / "rounds" / f"{number:06d}"

    @precondition(lambda self: self.lock is None)
    @rule(seed=st.integers(0, 2))
    def create(self, seed):
        if any(seed == other for other, _ in self.committed.values()):
            return
        self.lock = write_lock(self.store.path, "mining store")
        self.lock.__enter__()
        self.seed, self.writer = seed, begin(self.store, key_of(seed), ENTRIES, DIM, HOW, SHARD)

    @precondition(lambda self: self.writer is not None)
    @rule(which=st.integers(0, 2))
    def write(self, which):
        start, stop = self.writer.shards()[which]
        self.writer.put_shard(start, descriptors_of(self.seed)[start:stop], np.zeros(stop - start, bool))

    @precondition(lambda self: self.writer is not None)
    @rule()
    def derive_draft(self):
        self.writer.record("pairs", pairs_of(self.seed), {"pairs": COUNT})

    @precondition(lambda self: self.writer is not None)
    @rule(which=st.integers(0, 2), cut=st.integers(0, 60), torn=st.booleans())
    def kill(self, which, cut, torn):
        path = self.writer.folder / f"descriptors/c/{which}/0"
        if torn and path.is_file():
            path.write_bytes(path.read_bytes()[:cut])  # a write that the disk never finished
        self.lock.__exit__(None, None, None)
        self.lock = self.writer = None

    @precondition(lambda self: self.writer is not None)
    @rule()
    def commit(self):
        for start, stop in self.writer.shards():  # as a pass does: what is not sound is written
            if not self.writer.shard_is_sound(start, stop):
                self.writer.put_shard(start, descriptors_of(self.seed)[start:stop], np.zeros(stop - start, bool))
        done = self.writer.commit({"network": "made-up", "counts": {"entries": COUNT}})
        self.committed[done.number] = (self.seed, "pairs" in done.derived)
        self.lock.__exit__(None, None, None)
        self.lock = self.writer = None

    @precondition(lambda self: self.lock is None and set(self.committed) - set(self.damaged))
    @rule(data=st.data(), interrupted=st.booleans())
    def derive_committed(self, data, interrupted):
        number = data.draw(st.sampled_from(sorted(set(self.committed) - set(self.damaged))))
        with write_lock(self.store.path, "mining store"):
            writer, seed = RoundWriter.extend(self.store.open(number)), self.committed[number][0]
            if interrupted:
                if "pairs" in writer.attrs["derived"]:
                    writer.forget("pairs")
                writer.put("pair_distance", pairs_of(seed)["pair_distance"])
            else:
                writer.record("pairs", pairs_of(seed), {"pairs": COUNT})
        self.committed[number] = (seed, not interrupted)

    @precondition(lambda self: set(self.committed) - set(self.damaged))
    @rule(data=st.data(), how=st.sampled_from(["missing", "short", "long"]))
    def damage(self, data, how):
        number = data.draw(st.sampled_from(sorted(set(self.committed) - set(self.damaged))))
        files = [f for group in self.store.open(number).attrs["files"].values() for f in group]
        name = data.draw(st.sampled_from([f for f in files if f.startswith("descriptors")]))
        path = self.path(number) / name
        content = path.read_bytes()
        path.unlink() if how == "missing" else path.write_bytes(content[:-1] if how == "short" else content + b"x")
        self.damaged[number] = [name]

    @precondition(lambda self: self.damaged and self.lock is None)
    @rule(data=st.data(), right=st.booleans())
    def repair(self, data, right):
        number = data.draw(st.sampled_from(sorted(self.damaged)))
        seed = self.committed[number][0] if right else 99
        with write_lock(self.store.path, "mining store"):
            opened = self.store.open(number, check=False)
            damaged = [each.file for each in opened.damaged(checksums=True)]
            assert damaged == self.damaged[number]
            writer, scratch = RoundWriter.extend(opened), RoundWriter.beside(opened)
            for start, stop in scratch.shards():
                scratch.put_shard(start, descriptors_of(seed)[start:stop], np.zeros(stop - start, bool))
            taken = [writer.adopt(scratch, file) for file in damaged]
        metadata = all(name.endswith("zarr.json") for name in damaged)  # the same whatever the content
        assert taken == [right or metadata]
        if right or metadata:
            del self.damaged[number]

    @precondition(lambda self: self.lock is None)
    @rule(keep=st.integers(0, 2))
    def prune(self, keep):
        gone = sorted(self.committed)[: max(0, len(self.committed) - keep)]
        assert self.store.prune(keep) == gone
        for number in gone:
            del self.committed[number]
            self.damaged.pop(number, None)

    @invariant()
    def readers_see_whole_rounds_and_no_others(self):
        assert [r.number for r in self.store.rounds()] == sorted(self.committed)
        for number, (seed, derived) in self.committed.items():
            if number in self.damaged:
                with pytest.raises(StoreError, match=f"--repair {number}"):
                    self.store.open(number)
                continue
            opened = self.store.open(number)
            assert opened.attrs["key_hash"] == key_hash(key_of(seed))
            np.testing.assert_array_equal(opened.descriptors(), descriptors_of(seed))
            np.testing.assert_array_equal(opened.entry_offsets, ENTRIES[2])
            if derived:
                np.testing.assert_array_equal(opened.pair_distance()[0], pairs_of(seed)["pair_distance"])
            else:
                with pytest.raises(StoreError, match="no derived pairs"):
                    opened.pair_distance()
        if not self.committed:
            with pytest.raises(MissingError):
                self.store.open("latest")


Rounds.TestCase.settings = settings(
    max_examples=12, stateful_step_count=14, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestRounds = Rounds.TestCase
