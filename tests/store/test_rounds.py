"""Rounds on disk: layout, commit, keys, damage, pruning."""

import json
import pickle

import numpy as np
import pytest
import torch
import zarr
from mining_world import OPTIONS, Tiny, contents, make_store

from hardmine.errors import InputError, LockedError, MissingError, StoreError
from hardmine.mining.mine import mine
from hardmine.store.files import write_lock
from hardmine.store.fingerprint import content_key, differences, key_hash, weights_sha256
from hardmine.store.round_writer import RoundWriter, begin
from hardmine.store.rounds import MiningStore


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store", (3, 1, 9, 2, 5))


@pytest.fixture
def mined(store, tmp_path):
    return mine(store, tmp_path / "mining", Tiny(), **OPTIONS)


def test_another_zarr_reader_sees_the_documented_arrays(mined, tmp_path):
    group = zarr.open_group(tmp_path / "mining", mode="r")["rounds/000001"]
    descriptors = group["descriptors"]
    count = mined.round.attrs["counts"]["entries"]
    assert (descriptors.shape, descriptors.dtype, descriptors.shards) == ((count, 6), np.float32, (8, 6))
    assert np.isnan(descriptors.fill_value)
    assert group["knn"].fill_value == -1
    assert group["entry_row"].dtype == group["entry_offsets"].dtype == group["knn"].dtype == np.int64
    assert group["entry_view"].dtype == np.int16
    assert group.attrs["committed"] is True
    assert set(group.array_keys()) == {
        *("entry_row", "entry_view", "entry_offsets", "entry_constant", "descriptors", "pair_distance", "pair_offsets"),
        *("knn", "knn_distance", "knn_other", "knn_other_distance"),
        *("class_centroid", "nearest_class", "nearest_class_distance"),
    }
    metadata = json.loads((tmp_path / "mining/rounds/000001/descriptors/zarr.json").read_text())
    codecs = metadata["codecs"][0]["configuration"]["codecs"]
    assert [codec["name"] for codec in codecs] == ["bytes", "crc32c"]


def test_attributes_name_no_time_and_no_machine(mined, tmp_path):
    names = set(mined.round.attrs)
    assert names == {
        *("format", "committed", "key", "key_hash", "how", "derived", "files"),
        *("network", "step", "split", "spread", "counts", "patch_shards"),
    }
    line = json.loads((tmp_path / "mining/log.jsonl").read_text().splitlines()[0])
    assert {"seconds", "host", "time"} <= set(line)


def test_equal_runs_are_equal_byte_for_byte(store, mined, tmp_path):
    mine(store, tmp_path / "again", Tiny(), **OPTIONS)
    assert contents(tmp_path / "again/rounds") == contents(tmp_path / "mining/rounds")


def test_uncommitted_rounds_are_invisible(mined, tmp_path):
    path = tmp_path / "mining/rounds/000001/zarr.json"
    group = json.loads(path.read_text())
    group["attributes"]["committed"] = False
    path.write_text(json.dumps(group))
    target = MiningStore(tmp_path / "mining")
    assert target.rounds() == []
    assert target.find(mined.round.key) is None
    with pytest.raises(MissingError, match="none"):
        target.open("latest")


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"attributes": [1]}', '{"attributes": {"committed": true, "key": {}}}']
)
def test_attributes_that_are_none_name_the_file(mined, tmp_path, content):
    (mined.round.folder / "zarr.json").write_text(content)
    with pytest.raises(StoreError, match=r"000001/zarr\.json is damaged \(.*\)\. Delete the folder"):
        MiningStore(tmp_path / "mining").rounds()


@pytest.mark.parametrize("damage", ["missing", "short"])
@pytest.mark.parametrize("name", ["descriptors/c/1/0", "knn/c/0/0", "entry_row/c/0"])
def test_opening_names_a_damaged_file_and_what_to_do(mined, tmp_path, damage, name):
    path = tmp_path / "mining/rounds/000001" / name
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-5])
    target = MiningStore(tmp_path / "mining")
    for attempt in (lambda: target.open(1), lambda: target.find(mined.round.key)):
        with pytest.raises(StoreError, match=rf"(?s){name}.*(missing|bytes instead).*--repair 1.*Delete that round"):
            attempt()


def test_silent_damage_is_found_by_reading_and_by_checksums(mined, tmp_path):
    path = tmp_path / "mining/rounds/000001/descriptors/c/1/0"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    opened = MiningStore(tmp_path / "mining").open(1)
    with pytest.raises(StoreError, match="descriptors cannot be read"):
        opened.descriptors()
    with pytest.raises(StoreError, match="another checksum"):
        opened.check_files(checksums=True)
    mined.round.check_files()


def test_opening_by_number_and_latest(store, mined, tmp_path):
    second = mine(store, tmp_path / "mining", Tiny(1), **OPTIONS)
    target = MiningStore(tmp_path / "mining")
    assert [r.number for r in target.rounds()] == [1, 2]
    assert target.open("latest").number == target.open("2").number == second.round.number == 2
    assert target.open(1).key == mined.round.key
    with pytest.raises(MissingError, match="1, 2"):
        target.open(3)
    with pytest.raises(InputError, match="latest"):
        target.open("newest")
    assert MiningStore(tmp_path / "nowhere").rounds() == []


def test_a_wrong_key_says_which_part_differs(mined, tmp_path):
    target = MiningStore(tmp_path / "mining")
    key = json.loads(json.dumps(mined.round.key))
    assert target.require(key).number == 1
    key["network"]["weights"] = "0" * 64
    with pytest.raises(StoreError, match=r"round 1, differs in network\.weights: .* there, 000000000000\.\.\. here"):
        target.require(key)
    key["views"] = None
    changed = [line.split(":")[0] for line in differences(mined.round.key, key)]
    assert changed == ["network.weights", "views.max_degrees", "views.per_class", "views.seed"]


def test_every_part_counts_in_the_key():
    parts = {"network": {"network": "a", "weights": "1"}, "views": None, "split": "train", "patches": "p"}
    key = content_key(**parts)
    assert differences(key, content_key(**parts)) == []
    changes = {
        "network": {"network": "a", "weights": "2"},
        "views": {"per_class": 15},
        "split": "val",
        "patches": "q",
        "dtype": "float16",
        "metric": "cosine",
    }
    hashes = {key_hash(content_key(**{**parts, name: value})) for name, value in changes.items()}
    assert len(hashes | {key_hash(key)}) == 7


def test_weights_are_hashed_by_name_dtype_shape_and_bytes():
    state = {"a": torch.arange(6.0), "n": torch.tensor(3), "h": torch.ones(2, dtype=torch.bfloat16)}
    same = {name: state[name].clone() for name in ("n", "h", "a")}
    assert weights_sha256(state) == weights_sha256(same)
    others = [
        {**state, "a": state["a"].reshape(2, 3)},
        {**state, "a": state["a"].to(torch.float64)},
        {**state, "n": torch.tensor(4)},
        {"b": state["a"], "n": state["n"], "h": state["h"]},
    ]
    assert len({weights_sha256(other) for other in [state, *others]}) == 5
    assert weights_sha256({"t": torch.eye(3)[:, :2].T}) == weights_sha256({"t": torch.eye(3)[:, :2].T.contiguous()})


def test_prune_keeps_the_newest_and_the_pinned(store, mined, tmp_path):
    target = MiningStore(tmp_path / "mining")
    for seed in range(1, 5):
        mine(store, target.path, Tiny(seed), derive=(), **OPTIONS)
    assert target.prune(keep=2, pinned={1}) == [2, 3]
    assert [r.number for r in target.rounds()] == [1, 4, 5]
    assert sorted(p.name for p in (target.path / "rounds").iterdir() if p.is_dir()) == ["000001", "000004", "000005"]
    assert mine(store, target.path, Tiny(9), derive=(), **OPTIONS).round.number == 6
    with pytest.raises(InputError):
        target.prune(keep=-1)
    with write_lock(target.path, "mining store"), pytest.raises(LockedError):
        target.prune(keep=1)


def test_arrays_are_read_only_and_a_pickled_round_carries_none(mined):
    descriptors = mined.round.descriptors()
    with pytest.raises(ValueError, match="read-only"):
        descriptors[0] = 0
    copy = pickle.loads(pickle.dumps(mined.round))
    assert not copy._arrays
    np.testing.assert_array_equal(copy.descriptors(), descriptors)


def test_what_was_not_derived_is_refused_with_the_command(store, tmp_path):
    result = mine(store, tmp_path / "mining", Tiny(), derive=("pairs",), **OPTIONS)
    with pytest.raises(StoreError, match=r"no derived knn \(it has: pairs\).*--derive knn"):
        result.round.knn()
    assert result.round.index("Flat").factory == "Flat"  # every round has the exact one


def test_a_draft_of_something_else_is_dead(tmp_path):
    target, network = MiningStore(tmp_path / "mining"), {"network": "x", "weights": "1"}
    entries = (np.arange(20), np.zeros(20, np.int16), np.array([0, 20]))
    key = content_key(network=network, views=None, split="all", patches="p")
    with write_lock(target.path, "mining store"):
        draft = begin(target, key, entries, 3, {"batch": 4, "device": "cpu"}, 8)
        draft.put_shard(0, np.ones((8, 3), np.float32), np.zeros(8, bool))
        again = begin(target, key, entries, 3, {"batch": 4, "device": "cpu"}, 8)
        assert [again.shard_is_sound(*part) for part in again.shards()] == [True, False, False]
        other_batch = begin(target, key, entries, 3, {"batch": 5, "device": "cpu"}, 8)
        assert other_batch.number == 2  # what a worker of the dead one still writes lands in no round
        assert not other_batch.shard_is_sound(0, 8)
        other_key = begin(target, key | {"split": "val"}, entries, 3, {"batch": 4, "device": "cpu"}, 8)
        assert other_key.number == 3
        assert isinstance(other_key, RoundWriter)
    assert len(list((target.path / "rounds").glob("0*"))) == 1


def test_a_newer_format_is_refused(mined, tmp_path):
    path = tmp_path / "mining/rounds/000001/zarr.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match="update hardmine"):
        MiningStore(tmp_path / "mining").rounds()
