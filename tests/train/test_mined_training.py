"""Training from what mining found: nearest classes, the age of a round in the log, and rows that are left out."""

import json

import numpy as np
import pytest

from hardmine.errors import InputError, StoreError
from hardmine.mining.exclusions import Exclusions
from hardmine.mining.samplers import PairSampler
from hardmine.protocols.inspect import inspect
from hardmine.store.rounds import MiningStore
from hardmine.train.loop import train
from hardmine.train.recipe import load_recipe
from hardmine.train.runs import load


def recipe(stores, *overrides, base="hardnet"):
    options = [f"data.store={stores['train']}", "data.split=train", "train.pairs=8", "train.steps=7"]
    options += ["train.mine_every=3", "train.lag=2", "train.checkpoint_every=2", "train.log_every=1"]
    return load_recipe(base, [*options, *overrides])


def lines(run):
    found = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in found]


NEIGHBOURS = ["sampler.name=neighbours", "sampler.group=4", "sampler.share=0.5"]


def test_g87_the_age_of_a_round_and_what_is_still_hard_are_in_the_log(stores, tmp_path):
    train(recipe(stores, *NEIGHBOURS), tmp_path / "run", device="cpu")
    ages = [(line["step"], line["round_age"]) for line in lines(tmp_path / "run") if "round_age" in line]
    assert ages == [(3, 3.0), (6, 3.0), (7, 1.0)]
    shares = [line["round_still_hard"] for line in lines(tmp_path / "run") if "round_still_hard" in line]
    assert len(shares) == 3
    assert all(0 < share <= 1 for share in shares)
    shown = inspect(tmp_path / "run")["last figures"]
    assert (shown["round_age"], shown["round_still_hard"]) == (1.0, shares[-1])
    assert 0 < shown["coverage"] <= 1


def test_neighbours_train_from_the_rounds_of_the_run(stores, tmp_path, monkeypatch):
    plans, original = [], PairSampler.plan

    def plan(self, step):
        plans.append((step, original(self, step), self.nearest))
        return plans[-1][1]

    monkeypatch.setattr(PairSampler, "plan", plan)
    train(recipe(stores, *NEIGHBOURS, "data.exclude_overlap=0"), tmp_path / "run", device="cpu")
    rounds = {r.attrs["step"]: r for r in MiningStore(tmp_path / "run" / "mining").rounds() if r.attrs["step"] < 7}
    assert [step for step, _, _ in plans] == list(range(7))
    for step, _, nearest in plans:
        if step // 3 * 3 in rounds:  # the run keeps its last rounds
            np.testing.assert_array_equal(nearest, rounds[step // 3 * 3].nearest_class()[0])


def test_a_stopped_run_of_neighbours_ends_as_one_left_alone(stores, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, total, figures):
        if done == 5:
            raise Stop

    train(recipe(stores, *NEIGHBOURS), tmp_path / "whole", device="cpu")
    with pytest.raises(Stop):
        train(recipe(stores, *NEIGHBOURS), tmp_path / "run", device="cpu", progress=stop)
    train(recipe(stores, *NEIGHBOURS), tmp_path / "run", device="cpu")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    for name, value in load(tmp_path / "whole").state_dict().items():
        assert np.array_equal(load(tmp_path / "run").state_dict()[name], value)


@pytest.mark.parametrize("base", ["hardnet", "adasample", "neighbours"])
def test_excluded_rows_are_in_no_plan(base, stores, train_store, tmp_path, monkeypatch):
    plans, original = [], PairSampler.plan

    def plan(self, step):
        plans.append(original(self, step))
        return plans[-1]

    monkeypatch.setattr(PairSampler, "plan", plan)
    rows = train_store.rows("train")
    label = train_store.label[rows]
    gone = [int(rows[label == c][0]) for c in np.unique(label)[:10]]
    Exclusions(train_store.fingerprint, dict.fromkeys(gone, "a test")).write(tmp_path / "list.json")
    more = NEIGHBOURS if base == "neighbours" else []
    chosen = recipe(
        stores,
        *more,
        f"data.exclude={tmp_path / 'list.json'}",
        "train.steps=12",
        base="hardnet" if base == "neighbours" else base,
    )
    train(chosen, tmp_path / "run", device="cpu")
    seen = np.unique(np.concatenate([each.rows for each in plans]))
    assert not np.isin(seen, gone).any()
    assert np.isin(seen, rows).all()
    assert len(seen) > len(rows) / 2
    Exclusions(train_store.fingerprint, {gone[0]: "another list"}).write(tmp_path / "list.json")
    with pytest.raises(InputError, match="holds a run of another content"):
        train(chosen, tmp_path / "run", device="cpu")
    Exclusions("0" * 64, {0: "foreign"}).write(tmp_path / "list.json")
    with pytest.raises(StoreError, match="was made for the patch store"):
        train(chosen, tmp_path / "other", device="cpu")
