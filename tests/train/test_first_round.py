"""The step of a run's first round: before it plans are drawn evenly, from it on they follow from the round."""

import json

import numpy as np
import pytest

from hardmine.errors import InputError
from hardmine.mining.samplers import PairSampler
from hardmine.mining.samplers.class_balanced import ClassBalanced
from hardmine.train.loop import train
from hardmine.train.recipe import MinedRounds, load_recipe
from hardmine.train.runs import load


def recipe(stores, *overrides, base="adasample", first=2):
    options = [f"data.store={stores['train']}", "data.split=train", "train.pairs=8", "train.steps=7"]
    options += ["train.mine_every=4", "train.lag=2", "train.checkpoint_every=1", "train.log_every=1"]
    if first:
        options.append(f"mining.first_step={first}")
    return load_recipe(base, [*options, *overrides])


def lines(run):
    found = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in found]


@pytest.fixture
def planned(monkeypatch):
    """Every plan that a sampler of pairs makes from now on, in order."""
    plans, original = [], PairSampler.plan

    def plan(self, step):
        plans.append(original(self, step))
        return plans[-1]

    monkeypatch.setattr(PairSampler, "plan", plan)
    return plans


HARDPOS = ["sampler={name='hardpos'}"]
NEIGHBOURS = ["sampler={name='neighbours', group=4}", "data.exclude_overlap=0"]


@pytest.mark.parametrize("sampler", [[], HARDPOS, NEIGHBOURS], ids=["adasample", "hardpos", "neighbours"])
def test_plans_before_the_first_round_are_those_of_random_pairs(sampler, stores, tmp_path, planned):
    train(recipe(stores, *sampler), tmp_path / "run", device="cpu")
    waited = list(planned)
    planned.clear()
    train(recipe(stores, "sampler={name='random'}", *sampler[1:], first=0), tmp_path / "random", device="cpu")
    same = [a == b for a, b in zip(waited, planned, strict=True)]
    assert same == [True, True, False, False, False, False, False]
    assert [line["step"] for line in lines(tmp_path / "run") if "mined_round" in line] == [2, 4]
    assert [line["round_age"] for line in lines(tmp_path / "run") if "round_age" in line] == [2, 3]


@pytest.mark.parametrize("name", ["class-groups", "pads-classes"])
def test_batches_of_items_before_the_first_round_are_class_balanced(name, stores, tmp_path, monkeypatch):
    plain = tmp_path / "plain.toml"
    plain.write_text("")

    def items(sampler, folder, *more):
        plans, original = [], ClassBalanced.plan

        def plan(self, step):
            plans.append(original(self, step))
            return plans[-1]

        with monkeypatch.context() as patched:
            patched.setattr(ClassBalanced, "plan", plan)
            options = [f"data.store={stores['train']}", "data.split=train", "train.steps=6", "train.mine_every=100"]
            options += [f"sampler={{name='{sampler}', classes=6, per_class=2}}", "train.log_every=1", "train.lag=2"]
            options += ["miner={name='pads'}", "loss={name='triplet'}"]
            train(load_recipe(plain, [*options, *more]), tmp_path / folder, device="cpu")
        return plans

    waited = items(name, "run", "sampler.group=3", "mining.first_step=3")
    even = items("class-balanced", "even")
    same = [np.array_equal(a.rows, b.rows) for a, b in zip(waited, even, strict=True)]
    assert same == [True, True, True, False, False, False]
    covered = [[line["coverage"] for line in lines(tmp_path / each) if "coverage" in line] for each in ("run", "even")]
    assert covered[0][:3] == covered[1][:3]


@pytest.mark.parametrize("stopped_at", [1, 2, 3])
def test_a_run_stopped_around_its_first_round_ends_as_one_left_alone(stopped_at, stores, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, total, figures):
        if done == stopped_at:
            raise Stop

    train(recipe(stores), tmp_path / "whole", device="cpu")
    with pytest.raises(Stop):
        train(recipe(stores), tmp_path / "run", device="cpu", progress=stop)
    train(recipe(stores), tmp_path / "run", device="cpu")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    for name, value in load(tmp_path / "whole").state_dict().items():
        assert np.array_equal(load(tmp_path / "run").state_dict()[name], value)


def test_a_first_step_that_cannot_act_is_refused(stores, tmp_path):
    with pytest.raises(InputError, match="no round would be mined"):
        recipe(stores, first=7)
    with pytest.raises(InputError, match="either start, a round to begin with, or first_step"):
        recipe(stores, "mining.start=somewhere")
    with pytest.raises(InputError, match="'random' needs none: leave the section out"):
        train(recipe(stores, base="hardnet"), tmp_path / "run", device="cpu")


def test_a_recipe_without_it_keeps_its_digest(stores):
    assert MinedRounds().first_step == 0
    assert recipe(stores, first=0).digest() == recipe(stores, "mining.first_step=0", first=0).digest()
    assert recipe(stores, first=0).digest() != recipe(stores).digest()
