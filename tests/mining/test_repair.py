"""`mine --repair`: what is damaged, and nothing else, is made again to the byte; or the reason why not is said."""

import numpy as np
import pytest
from mining_world import OPTIONS, Tiny, contents, make_store

from hardmine.errors import InputError, LockedError, MissingError, StoreError
from hardmine.mining.mine import mine
from hardmine.mining.repair import repair
from hardmine.store.files import write_lock
from hardmine.store.rounds import MiningStore


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store", (3, 1, 9, 2, 5), constant=(4,))


@pytest.fixture
def mined(store, tmp_path):
    return mine(store, tmp_path / "m", Tiny(), index="HNSW8", **OPTIONS)


def damage(path, how):
    if how == "missing":
        path.unlink()
    elif how == "short":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


FILES = ["descriptors/c/1/0", "descriptors/zarr.json", "entry_constant/c/2", "entry_row/c/0", "entry_offsets/zarr.json"]
FILES += ["pair_distance/c/0", "knn_other/c/0/0", "class_centroid/c/0/0", "index/c/0"]


@pytest.mark.parametrize("how", ["missing", "short", "flipped"])
@pytest.mark.parametrize("file", FILES)
def test_one_file_comes_back_to_the_byte(store, mined, tmp_path, file, how):
    before, network = contents(tmp_path / "m/rounds"), Tiny()
    damage(mined.round.folder / file, how)
    result = repair(store, tmp_path / "m", network=network)
    assert [each.file for each in result.repaired] == [file]
    assert contents(tmp_path / "m/rounds") == before
    assert network.calls == result.embedded == (8 if file == "descriptors/c/1/0" else 0)
    result.round.check_files(checksums=True)


def test_everything_at_once_and_by_workers(store, mined, tmp_path):
    before = contents(tmp_path / "m/rounds")
    for path in mined.round.folder.glob("*/**/*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(StoreError, match="--repair 1"):
        mine(store, tmp_path / "m", Tiny(), index="HNSW8", **OPTIONS)
    result = repair(store, tmp_path / "m", 1, network=Tiny(), workers=1)
    assert result.embedded == len(mined.round.entry_row)
    assert contents(tmp_path / "m/rounds") == before
    assert len(result.json()["repaired"]) == len(result.repaired) > 20


def test_derived_data_need_neither_network_nor_store(mined, tmp_path):
    before = contents(tmp_path / "m/rounds")
    damage(mined.round.folder / "knn/c/0/0", "flipped")
    assert repair(None, tmp_path / "m").embedded == 0
    assert contents(tmp_path / "m/rounds") == before
    assert repair(None, tmp_path / "m").json()["messages"] == ["every file is as it was committed"]


def test_what_is_needed_is_named(store, mined, tmp_path):
    damage(mined.round.folder / "descriptors/c/0/0", "missing")
    before = contents(tmp_path / "m/rounds")
    weights = mined.round.key["network"]["weights"][:12]
    with pytest.raises(InputError, match=rf"network tiny with the weights {weights}.* is needed: give it as"):
        repair(store, tmp_path / "m")
    with pytest.raises(InputError, match=rf"{weights}.* differs in weights: "):
        repair(store, tmp_path / "m", network=Tiny(1))
    other = make_store(tmp_path / "other", (3, 2), seed=2)
    for given in (None, other):
        with pytest.raises(InputError, match="patch store with the fingerprint"):
            repair(given, tmp_path / "m", network=Tiny())
    with pytest.raises(MissingError, match="no round 7"):
        repair(store, tmp_path / "m", 7, network=Tiny())
    with write_lock(tmp_path / "m", "mining store"), pytest.raises(LockedError):
        repair(store, tmp_path / "m", network=Tiny())
    assert contents(tmp_path / "m/rounds") == before


def test_other_bytes_are_refused_and_nothing_is_put_in_place(store, mined, tmp_path, monkeypatch):
    damage(mined.round.folder / "descriptors/c/1/0", "short")
    before = contents(tmp_path / "m/rounds")
    network, original = Tiny(), Tiny.forward
    monkeypatch.setattr(Tiny, "forward", lambda self, pixels: original(self, pixels) * 1.0001)  # another machine
    with pytest.raises(StoreError, match=r"descriptors/c/1/0 has \d+ bytes.*comes out other than it was committed"):
        repair(store, tmp_path / "m", network=network)
    assert contents(tmp_path / "m/rounds") == before


def test_a_killed_repair_leaves_what_the_next_one_clears(store, mined, tmp_path, monkeypatch):
    before = contents(tmp_path / "m/rounds")
    for file in ("descriptors/c/0/0", "knn/c/0/0"):
        damage(mined.round.folder / file, "missing")
    left = tmp_path / "m/rounds/000001.repair.removed"
    with monkeypatch.context() as patched:
        patched.setattr("hardmine.mining.repair.derive", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        patched.setattr("shutil.rmtree", lambda *a, **k: None)  # a kill clears nothing away
        with pytest.raises(KeyboardInterrupt):
            repair(store, tmp_path / "m", network=Tiny())
    assert left.exists()
    assert [r.number for r in MiningStore(tmp_path / "m").rounds()] == [1]
    result = repair(store, tmp_path / "m", network=Tiny())
    assert [each.file for each in result.repaired] == ["knn/c/0/0"]
    assert contents(tmp_path / "m/rounds") == before


def test_a_grown_round_is_repaired_from_the_one_it_was_copied_from(store, tmp_path):
    from test_passes import grow

    mine(store, tmp_path / "m", Tiny(), **OPTIONS)
    grown = grow(store, [0, 7, 7])
    after = mine(grown, tmp_path / "m", Tiny(), **OPTIONS)
    before, network = contents(tmp_path / "m/rounds"), Tiny()
    damage(after.round.folder / "descriptors/c/0/0", "missing")
    assert repair(grown, tmp_path / "m", network=network).embedded < 8
    assert contents(tmp_path / "m/rounds") == before
    np.testing.assert_array_equal(MiningStore(tmp_path / "m").open(2).descriptors(), after.round.descriptors())


def test_the_command_line(store, tmp_path):
    import json

    from typer.testing import CliRunner

    import hardmine.cli

    def run(*words, fails=None):
        result = CliRunner().invoke(hardmine.cli.app, ["mine", str(store.path), str(tmp_path / "m"), *words, "--json"])
        if fails is not None:
            assert isinstance(result.exception, InputError)
            assert fails in str(result.exception)
            return {}
        assert result.exit_code == 0, (result.output, result.exception)
        return json.loads(result.stdout)

    network = ["--network", "l2net", "--seed", "3"]
    run(*network, "--derive", "pairs")
    assert run("--network", "l2net", "--derive", "", "--autocast", "bfloat16")["round"] == 2
    found = run("--round", "1", "--derive", "knn", "--neighbours", "5")
    assert (found["embedded"], found["derived"]["knn"]["neighbours"]) == (0, 5)
    damage(tmp_path / "m/rounds/000001/descriptors/c/0/0", "short")
    run("--repair", "1", fails="give it as --checkpoint or --network")
    assert run("--repair", "1", *network)["repaired"][0].startswith("descriptors/c/0/0 has ")
    run("--round", "1", *network, fails="leave out")
    run("--round", "1", "--split", "all", fails="has its split")
    run("--round", "1", "--workers", "2", fails="derived here")
    assert run("--round", "latest", "--derive", "pairs", "--prune", "1")["pruned_rounds"] == [1]
