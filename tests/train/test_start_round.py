"""Training from a round that another mining store holds: on a disk, in memory, on S3."""

import json
import shutil

import fsspec
import numpy as np
import pytest

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.mining.mine import mine
from hardmine.mining.samplers import PairSampler
from hardmine.protocols.inspect import inspect
from hardmine.store import remote_rounds
from hardmine.store.remote import copy_files, copy_store
from hardmine.store.remote_rounds import fetch_round, find_round
from hardmine.store.rounds import MiningStore
from hardmine.train import round_in_use
from hardmine.train.loop import train
from hardmine.train.networks import build
from hardmine.train.recipe import load_recipe

SAMPLERS = {
    "adasample": ["sampler.name=adasample"],
    "hardpos": ["sampler.name=hardpos"],
    "neighbours": ["sampler.name=neighbours", "sampler.group=4"],
}


@pytest.fixture(scope="module")
def mined(train_store, tmp_path_factory):
    """A mining store with the training split under the weights of seed 7, and under those of seed 0; of the second
    nothing is derived."""
    path = tmp_path_factory.mktemp("mined") / "mining"
    for seed, derive in ((7, ("pairs", "centroids")), (0, ())):
        mine(train_store, path, build("l2net", {"dropout": 0.0}, seed), split="train", derive=derive)
    return path


def recipe(stores, start, *overrides, sampler="adasample"):
    options = [f"data.store={stores['train']}", "data.split=train", "train.pairs=8", "train.steps=6"]
    options += ["train.mine_every=4", "train.lag=2", "train.checkpoint_every=3", "train.log_every=1"]
    options += ["network.name=l2net", "network.dropout=0.0", *SAMPLERS[sampler]]
    return load_recipe("hardnet", [*options, *([f"mining.start={start}"] if start else []), *overrides])


def lines(run):
    found = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in found]


def weights(run):
    return (run / "weights.safetensors").read_bytes()


class Stop(Exception):
    pass


def stop_at(step):
    def progress(done, total, figures):
        if done == step:
            raise Stop

    return progress


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_round_on_s3_serves_the_first_stretch_and_mining_goes_on(everywhere, sampler, stores, mined, tmp_path):
    copy_store(mined, f"{everywhere}/copy")
    began = train(recipe(stores, f"{everywhere}/copy", sampler=sampler), tmp_path / "run", device="cpu")
    own = train(recipe(stores, None, sampler=sampler), tmp_path / "own", device="cpu")
    assert weights(began.path) == weights(own.path)  # round 2 is of the very weights the run begins with
    assert [line["start_round"] for line in lines(began.path) if "start_round" in line] == [2]
    assert [(line["step"], line["mined_round"]) for line in lines(began.path) if "mined_round" in line] == [(4, 3)]
    key = MiningStore(mined).open(2).attrs["key_hash"]
    assert began.result["start"] == {"store": f"{everywhere}/copy", "round": 2, "key": key}
    assert own.result["start"] is None


def test_the_round_of_other_weights_can_serve_the_whole_run(stores, mined, tmp_path, monkeypatch):
    seen, original = [], PairSampler.plan

    def plan(self, step):
        seen.append(self.distances.from_anchor(np.arange(2), np.zeros(2, np.int64)))
        return original(self, step)

    monkeypatch.setattr(PairSampler, "plan", plan)
    options = ["mining.start_round=1", 'mining.start_network="any"', "train.mine_every=6"]
    run = train(recipe(stores, mined, *options), tmp_path / "run", device="cpu").path
    values, offsets = MiningStore(mined).open(1).pair_distance()
    for found in seen:
        assert found[0].tolist()[1:] == values[offsets[0] : offsets[0] + 2].tolist()
    assert not any("mined_round" in line for line in lines(run))
    assert inspect(run)["rounds trained from"][0]["round"] == 1


def test_what_does_not_fit_is_an_error_that_says_which_part(stores, mined, tmp_path, train_store):
    with pytest.raises(StoreError, match=r"round 1 of .*mining does not fit.*network\.weights.*start_network"):
        train(recipe(stores, mined, "mining.start_round=1"), tmp_path / "a", device="cpu")
    mine(train_store, tmp_path / "val", build("l2net", {"dropout": 0.0}, 0), split="val", derive=())
    for any_network in ("same", "any"):
        chosen = recipe(stores, tmp_path / "val", f"mining.start_network={any_network}")
        with pytest.raises(StoreError, match="split: val there, train here"):
            train(chosen, tmp_path / any_network, device="cpu")
    turned = recipe(stores, mined, "views.per_class=6")
    with pytest.raises(StoreError, match=r"views.* there"):
        train(turned, tmp_path / "views", device="cpu")
    assert not (tmp_path / "views" / "mining" / "rounds").exists()
    with pytest.raises(MissingError, match="no committed round 9"):
        train(recipe(stores, mined, "mining.start_round=9"), tmp_path / "nine", device="cpu")


def test_recipes_in_which_an_option_would_do_nothing_are_refused(stores, mined, tmp_path):
    with pytest.raises(InputError, match="'random' needs none"):
        train(recipe(stores, mined, "sampler.name=random"), tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match="'adasample' embeds at each step"):
        train(recipe(stores, mined, "sampler.descriptors=online"), tmp_path / "online", device="cpu")
    with pytest.raises(InputError, match="give start"):
        recipe(stores, None, "mining.start_round=3")


def test_a_run_killed_before_and_after_its_first_checkpoint_needs_the_place_no_more(place, stores, mined, tmp_path):
    copy_store(mined, place)
    options = ['mining.start_network="any"', "mining.start_round=1"]
    whole = train(recipe(stores, place, *options), tmp_path / "whole", device="cpu").path
    for step in (2, 5):
        copy_store(mined, place)
        target = tmp_path / f"killed{step}"
        with pytest.raises(Stop):
            train(recipe(stores, place, *options), target, device="cpu", progress=stop_at(step))
        fsspec.filesystem("memory").rm(f"/{place.removeprefix('memory://')}", recursive=True)
        train(recipe(stores, place, *options), target, device="cpu")
        assert weights(target) == weights(whole)
        assert lines(target) == lines(whole)
        assert (target / "result.json").read_bytes() == (whole / "result.json").read_bytes()


def test_a_run_killed_while_fetching_goes_on_with_the_round_it_chose(stores, mined, tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "run"
    copy_store(mined, source)

    def killed(here, there, files, progress=None):
        copy_files(here, there, files[:-1])
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(remote_rounds, "copy_files", killed)
        with pytest.raises(Stop):
            train(recipe(stores, source), target, device="cpu")
    away = source.rename(tmp_path / "away")
    with pytest.raises(MissingError, match=rf"no mining store with rounds at {source}"):
        train(recipe(stores, source), target, device="cpu")
    away.rename(source)
    shutil.copytree(source / "rounds" / "000001", source / "rounds" / "000003")  # a later one appears meanwhile
    train(recipe(stores, source), target, device="cpu")
    assert json.loads((target / "start.json").read_text())["round"] == 2
    assert weights(target) == weights(train(recipe(stores, None), tmp_path / "own", device="cpu").path)


def test_another_round_in_the_place_of_the_chosen_one_is_refused(stores, mined, tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "run"
    copy_store(mined, source)
    with monkeypatch.context() as patch:
        patch.setattr(round_in_use, "fetch_round", lambda *_: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            train(recipe(stores, source), target, device="cpu")
    shutil.rmtree(source / "rounds" / "000002")
    shutil.copytree(source / "rounds" / "000001", source / "rounds" / "000002")
    with pytest.raises(StoreError, match=r"round 2 of .* is another round than the one"):
        train(recipe(stores, source), target, device="cpu")


def test_a_fetched_round_is_whole_or_not_there(place, mined, tmp_path):
    copy_store(mined, place)
    fs, root = fsspec.core.url_to_fs(place)
    file = f"{root}/rounds/000001/descriptors/c/0/0"
    good = fs.cat_file(file)
    fs.pipe_file(file, good[:100] + b"x" + good[101:])
    with pytest.raises(StoreError, match="descriptors/c/0/0 is damaged"):
        fetch_round(find_round(place, 1), tmp_path / "here")
    assert MiningStore(tmp_path / "here").rounds() == []
    fs.pipe_file(file, good)
    found = fetch_round(find_round(place, "1"), tmp_path / "here")
    assert np.array_equal(found.descriptors(), MiningStore(mined).open(1).descriptors())
    assert [r.number for r in MiningStore(tmp_path / "here").rounds()] == [1]
    fs.rm(root, recursive=True)
    with pytest.raises(MissingError, match="no mining store with rounds at memory://"):
        find_round(place)


def test_a_draft_is_never_found(mined, tmp_path):
    copy_store(mined, tmp_path / "copy")
    file = tmp_path / "copy" / "rounds" / "000002" / "zarr.json"
    content = json.loads(file.read_text())
    content["attributes"]["committed"] = False
    file.write_text(json.dumps(content))
    assert find_round(tmp_path / "copy").number == 1
    with pytest.raises(MissingError, match="no committed round 2"):
        find_round(tmp_path / "copy", 2)
    with pytest.raises(InputError, match="'newest': give a number or 'latest'"):
        find_round(tmp_path / "copy", "newest")
