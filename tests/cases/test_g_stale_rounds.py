"""bugcases.md G87: mined once, reused for ever. The age of a round is shown; past a limit the run says so, mines anew,
or fails, as the recipe says, and however often it is stopped."""

import json

import pytest
from mining_world import make_store

from hardmine.errors import InputError, StoreError, UnknownNameError
from hardmine.protocols.inspect import inspect
from hardmine.train import round_in_use
from hardmine.train.loop import train
from hardmine.train.recipe import load_recipe


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("stale") / "store", (3,) * 16)


def recipe(store, *overrides):
    options = [f"data.store={store.path}", "train.pairs=4", "train.steps=6", "train.mine_every=100", "train.lag=1"]
    options += ["train.checkpoint_every=3", "train.log_every=1", "mining.staleness_anchors=8", *overrides]
    return load_recipe("adasample", options)


def lines(run):
    found = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in found]


def steps_of(run, name):
    return [line["step"] for line in lines(run) if name in line]


def weights(run):
    return (run / "weights.safetensors").read_bytes()


class Stop(Exception):
    pass


def stop_at_five(done, total, figures):
    if done == 5:
        raise Stop


def test_g87_three_rounds_and_the_age_of_each(store, tmp_path):
    run = train(recipe(store, "train.mine_every=2"), tmp_path / "run", device="cpu").path
    shown = inspect(run)["rounds trained from"]
    assert [(each["from step"], each["age"]) for each in shown] == [(0, 2), (2, 2), (4, 2)]
    assert all(0 < each["still hard"] <= 1 and each["stale"] is None for each in shown)
    kept = inspect(run / "mining")["rounds"]
    assert kept
    for line in kept:
        used = next(each for each in shown if each["round"] == line["round"])
        assert (line["age"], line["still hard"], line["stale"]) == (used["age"], used["still hard"], used["stale"])


def test_g87_a_round_past_its_age_is_said_once(store, tmp_path):
    chosen = recipe(store, "mining.stale_after=2", "mining.staleness_every=2")
    result = train(chosen, tmp_path / "run", device="cpu").result
    assert result["messages"] == ["step 2: round 1 is stale: 2 steps old (stale_after 2)"]
    assert [(line["step"], line["round_stale"]) for line in lines(tmp_path / "run") if "round_stale" in line] == [
        (2, 1.0),
        (4, 1.0),
        (6, 0.0),
    ]
    assert inspect(tmp_path / "run")["rounds trained from"][0]["stale"] is True
    silent = train(recipe(store), tmp_path / "silent", device="cpu")
    assert silent.result["messages"] == []
    assert weights(silent.path) == weights(tmp_path / "run")


def test_g87_mining_at_once_equals_mining_as_often(store, tmp_path):
    run = train(recipe(store, "mining.stale_after=2", "mining.on_stale=mine"), tmp_path / "run", device="cpu").path
    often = train(recipe(store, "train.mine_every=2"), tmp_path / "often", device="cpu").path
    assert steps_of(run, "mined_round") == [0, 2, 4]
    assert weights(run) == weights(often)
    assert weights(run) != weights(train(recipe(store), tmp_path / "once", device="cpu").path)


def test_g87_failing_and_going_on_with_a_warning(store, tmp_path):
    limit = "mining.stale_after=4"
    with pytest.raises(StoreError, match=r"step 4: round 1 is stale: 4 steps old .*--set mining.on_stale=warn"):
        train(recipe(store, limit, "mining.on_stale=fail"), tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match="another recipe"):
        train(recipe(store, limit, "mining.on_stale=mine"), tmp_path / "run", device="cpu")
    went_on = train(recipe(store, limit), tmp_path / "run", device="cpu")
    assert went_on.trained == 3  # from the checkpoint of step 3
    assert went_on.result == train(recipe(store, limit), tmp_path / "warned", device="cpu").result
    assert lines(tmp_path / "run") == lines(tmp_path / "warned")
    assert weights(tmp_path / "run") == weights(tmp_path / "warned")


@pytest.mark.parametrize("on_stale", ["warn", "mine"])
def test_g87_the_share_still_hard_decides_the_same_after_a_stop(on_stale, store, tmp_path):
    limits = ["mining.min_still_hard=0.999", "mining.staleness_every=1", f"mining.on_stale={on_stale}"]
    whole = train(recipe(store, *limits), tmp_path / "whole", device="cpu").path
    with pytest.raises(Stop):
        train(recipe(store, *limits), tmp_path / "run", device="cpu", progress=stop_at_five)
    train(recipe(store, *limits), tmp_path / "run", device="cpu")
    assert lines(tmp_path / "run") == lines(whole)
    assert weights(tmp_path / "run") == weights(whole)
    assert (tmp_path / "run" / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    looks = {line["step"]: line for line in lines(whole) if "round_still_hard" in line}
    assert sorted(looks) == [1, 2, 3, 4, 5, 6]
    below = [step for step, line in looks.items() if line["round_still_hard"] < 0.999]
    assert below == [step for step, line in looks.items() if line["round_stale"]]
    assert below
    mined = [0, *(step for step in below if step < 6)] if on_stale == "mine" else [0]
    assert steps_of(whole, "mined_round") == mined


def test_g87_no_anchors_no_embedding(store, tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("staleness was measured")

    monkeypatch.setattr(round_in_use, "staleness", never)
    run = train(recipe(store, "mining.staleness_anchors=0", "train.mine_every=3"), tmp_path / "run", device="cpu").path
    assert [line["round_age"] for line in lines(run) if "round_age" in line] == [3.0, 3.0]
    assert steps_of(run, "round_still_hard") == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mining.on_stale=mine"], "needs a limit"),
        (["mining.min_still_hard=0.5", "mining.staleness_anchors=0"], "staleness_anchors above 0"),
        (["mining.min_still_hard=0.5", "mining.on_stale=fail"], "needs staleness_every"),
        (["mining.min_still_hard=1.5"], "less than or equal to 1"),
    ],
)
def test_g87_limits_that_could_never_act_are_refused(overrides, message, store):
    with pytest.raises(InputError, match=message):
        recipe(store, *overrides)


def test_f69_a_misspelt_mining_option_names_the_nearest(store):
    with pytest.raises(UnknownNameError, match=r"Did you mean 'mining\.stale_after'"):
        recipe(store, "mining.stale_aftr=3")
