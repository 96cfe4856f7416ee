"""What a run descends: parts that do not go together are refused, and every kind of recipe trains and resumes."""

import json

import numpy as np
import pytest
import torch
from loss_world import some_batch

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.miners.drawn import Drawn
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.mining.samplers import PairSampler
from hardmine.train.loop import train
from hardmine.train.losses.triplet_margin import TripletMargin
from hardmine.train.networks import build
from hardmine.train.objective import Objective, build_objective
from hardmine.train.recipe import load_recipe, shipped
from hardmine.train.regularisers.decorrelation import Decorrelation
from hardmine.train.regularisers.gor import GlobalOrthogonal

GOR = "regularisers.gor.alpha=1"


def recipe(stores, base, *overrides):
    options = [f"data.store={stores['train']}", "data.split=train", "train.pairs=8", "train.steps=5", "train.lag=2"]
    options += ["train.checkpoint_every=2", "train.log_every=1", "network={name='l2net'}"]
    return load_recipe(base, [*options, *overrides])


def objective(base, *overrides):
    chosen = load_recipe(base, overrides)
    return build_objective(chosen, build(chosen.network.name, chosen.network.options))


def figures(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in lines]


def test_it_is_the_loss_on_the_miners_tuples_and_every_regulariser():
    batch, weight = some_batch(), torch.rand(9, dtype=torch.float64)
    loss, miner, parts = TripletMargin(), HardestInBatch(), {"gor": GlobalOrthogonal(), "plain": Decorrelation()}
    total, output, skipped, figures = Objective(loss, miner, parts)(batch, weight)
    alone = loss(batch, miner(batch), weight)
    assert total == alone.value + parts["gor"](batch).value + parts["plain"](batch).value
    assert output.value == alone.value
    assert torch.equal(output.per_item, alone.per_item)
    assert skipped == 1
    assert set(figures) == {"gor/m1", "gor/m2", "plain/penalty"}


def test_who_needs_drawn_negatives():
    assert not objective("hardnet").needs_drawn
    assert objective("hardnet", GOR).needs_drawn
    assert not objective("hardnet", "regularisers.gor.negatives=batch").needs_drawn
    assert objective("hardnet", "miner={name='drawn'}").needs_drawn
    assert not objective("hardnet", "regularisers.decorrelation.weight=0.1").needs_drawn


def test_the_miner_is_hardest_in_batch_unless_named_and_none_for_whole_batches():
    plain = load_recipe("hardnet").model_copy(update={"miner": None})
    assert build_objective(plain, build("l2net")).miner == HardestInBatch()
    assert objective("gor-n-pair").miner is None
    assert objective("gor-contrastive").miner is None
    assert objective("gor-contrastive", "loss.negatives=mined", "miner.name=drawn").miner == Drawn()


@pytest.mark.parametrize(
    ("base", "overrides", "message"),
    [
        ("hardnet", ["loss={name='n-pair'}"], "'n-pair' is computed on whole batches.*leave .miner. out"),
        ("hardnet", ["loss={name='contrastive', negatives='none'}"], "'contrastive' is computed on whole batches"),
        ("tfeat", [GOR], "regulariser 'gor' needs unit descriptors, and network 'tfeat' gives others"),
        ("tfeat", ["loss={name='aht'}"], "loss 'aht' needs unit descriptors, and network 'tfeat'"),
        ("hardnet", ["regularisers.gor.aplha=1"], r"'aplha'.*Did you mean 'alpha'"),
        ("hardnet", ["regularisers.gro.alpha=1"], r"unknown regulariser 'gro'.*Did you mean 'gor'"),
        ("hardnet", ["miner={name='drawn', negatives='all'}"], r"miner 'drawn'.*'negatives'"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(base, overrides, message):
    with pytest.raises((InputError, UnknownNameError), match=message):
        objective(base, *overrides)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_the_parts_of_every_shipped_recipe_go_together(name):
    objective(name)


def test_the_order_of_regularisers_in_the_file_does_not_matter():
    one = objective("hardnet", GOR, "regularisers.decorrelation.weight=0.5")
    other = objective("hardnet", "regularisers.decorrelation.weight=0.5", GOR)
    assert list(one.regularisers) == list(other.regularisers)


class Stop(Exception):
    pass


def stop(done, total, figures):
    if done == 3:
        raise Stop


@pytest.mark.parametrize("base", ["hardnet-gor", "gor-contrastive"])
def test_a_run_with_gor_logs_its_moments_and_resumes_to_the_same_bits(base, stores, tmp_path):
    chosen = recipe(stores, base)
    train(chosen, tmp_path / "whole", device="cpu")
    lines = [line for line in figures(tmp_path / "whole") if "loss" in line]
    assert len(lines) == 5
    for line in lines:
        gor = line["gor/m1"] ** 2 + max(0, line["gor/m2"] - 1 / 128)
        assert line["loss"] == pytest.approx(line["unweighted_loss"] + gor, rel=1e-5)
        assert 0 < line["gor/m2"] <= 1
    with pytest.raises(Stop):
        train(chosen, tmp_path / "stopped", device="cpu", progress=stop)
    train(chosen, tmp_path / "stopped", device="cpu", must_resume=True)
    weights = "weights.safetensors"
    assert (tmp_path / "stopped" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    assert figures(tmp_path / "stopped") == figures(tmp_path / "whole")


@pytest.mark.parametrize("base", ["tfeat", "gor-triplet", "gor-n-pair", "gor-lifted"])
def test_recipes_with_other_batches_train(base, stores, tmp_path, monkeypatch):
    plans, original = [], PairSampler.plan

    def plan(self, step):
        plans.append(original(self, step))
        return plans[-1]

    monkeypatch.setattr(PairSampler, "plan", plan)
    more = ["network={name='tfeat'}"] if base == "tfeat" else []
    done = train(recipe(stores, base, *more), tmp_path / "run", device="cpu")
    assert done.trained == 5
    assert all(plan.negative_row is not None for plan in plans)
    lines = [line for line in figures(tmp_path / "run") if "loss" in line]
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert ("gor/m1" in lines[0]) == (base != "tfeat")
    repeated = any(len(np.unique(plan.label)) < len(plan.label) for plan in plans)
    turned = {int(code) for plan in plans for code in plan.dihedral}
    assert (repeated, len(turned) > 2) == ((False, True) if base == "tfeat" else (True, False))
