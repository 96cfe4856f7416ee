"""What one process and several do alike: steps and trainings, with everything that must be equal."""

import os
import signal

import numpy as np
import torch
from ranks_world import image_recipe

from hardmine.errors import Stopped
from hardmine.mining.plan import BatchPlan, ItemPlan
from hardmine.mining.samplers import Sampler
from hardmine.options import check
from hardmine.pipeline.views import Views
from hardmine.train.loop import train
from hardmine.train.networks import build
from hardmine.train.objective import build_objective
from hardmine.train.optimizers import NamedOptimizer
from hardmine.train.recipe import Recipe
from hardmine.train.step import Step

PAIRS, ITEMS = 8, 12


def pair_plan(seed=0):
    """A plan of pairs with views, turns, weights and drawn negatives."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(3 * PAIRS).reshape(3, PAIRS)
    views = rng.integers(0, 5, (3, PAIRS)).astype(np.int16)
    weight = rng.uniform(0.5, 1.5, PAIRS).astype(np.float32)
    label = np.arange(PAIRS)
    codes = rng.integers(0, 8, PAIRS).astype(np.uint8)
    return BatchPlan(
        5, rows[0], rows[1], views[0], views[1], label, weight, codes, rows[2], views[2], np.roll(label, 1)
    )


def item_plan(seed=0):
    """A plan of single items, four classes of three."""
    return ItemPlan(5, np.random.default_rng(seed).permutation(ITEMS), np.repeat(np.arange(4), 3))


def a_step(ranks, network, options, loss, regularisers, pairs, autocast=None):
    """One step on a made-up batch: the loss, its gradients, what batch norm remembers, and the weights afterwards."""
    torch.set_num_threads(1)
    plan = pair_plan() if pairs else item_plan()
    tree = {"data": {"store": "nowhere"}, "network": {"name": network, **options}, "loss": {"name": loss}}
    tree |= {"regularisers": regularisers, "train": {"seed": 3, "autocast": autocast}, "optimizer": {"lr": 1e-3}}
    if not pairs:
        tree["miner"] = {"name": "semi-hard"}
    recipe = check(Recipe, tree, "the test's recipe")
    net = build(network, options, 0)
    objective = build_objective(recipe, net, 16)
    optimizer = NamedOptimizer(recipe.optimizer, net, objective.parameter_groups())
    step = Step(net, objective, optimizer, recipe.train, ranks, Views(per_class=5, max_degrees=30) if pairs else None)
    shape = (64, 64) if pairs else (3, 20, 20)
    every = np.random.default_rng(1).integers(0, 256, (3 * PAIRS, *shape), dtype=np.uint8)
    slots = ranks.slots(plan)
    result = step(torch.from_numpy(every[plan.rows if slots is None else plan.rows[slots]]), plan, 1.0)
    return {
        "loss": result.loss,
        "unweighted": result.unweighted,
        "figures": result.figures,
        "gradients": {name: p.grad.clone() for name, p in net.named_parameters()},
        "learned": [p.grad.clone() for p in step._learned],
        "state": {name: value.clone() for name, value in net.state_dict().items()},
        "after": objective.state(),
    }


STEPS = {
    "l2net": ("l2net", {"dropout": 0.3}, "triplet-margin", {"gor": {}}, True),
    "gor-net": ("gor-net", {"decay": 0.5}, "triplet-margin", {}, True),
    "items": ("convnet", {"side": 20, "channels": 3, "width": 8, "blocks": 2, "dim": 16}, "margin", {}, False),
    "l2net-bfloat16": ("l2net", {"dropout": 0.3}, "triplet-margin", {}, True, "bfloat16"),
}


def all_steps(ranks):
    return {name: a_step(ranks, *arguments) for name, arguments in STEPS.items()}


def plans_of(ranks, store, folder, stop_at=None, signalled=0, **changes):
    """Train `image_recipe`, up to SIGTERM in process `signalled` after a step, and give the plans and the outcome."""
    torch.set_num_threads(1)
    plans, plain = {}, Sampler.__iter__

    def recorded(self):
        for plan in plain(self):
            plans[plan.step] = (plan.rows.tolist(), plan.labels.tolist())
            yield plan

    def told(self, step, loss):
        if step + 1 == stop_at and ranks.rank == signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain_record(self, step, loss)

    plain_record = Sampler.record
    Sampler.__iter__, Sampler.record = recorded, told
    try:
        result = train(image_recipe(store, **changes), folder, ranks=ranks)
        outcome = result.result
    except Stopped as stopped:
        outcome = str(stopped)
    finally:
        Sampler.__iter__, Sampler.record = plain, plain_record
    return plans, outcome


def trainings(ranks, store, folder):
    """A straight run, one that is stopped and resumed, and one that is left stopped at step 5."""
    straight = plans_of(ranks, store, folder / "straight")
    stopped = plans_of(ranks, store, folder / "stopped", 5, ranks.size - 1)
    resumed = plans_of(ranks, store, folder / "stopped")
    left = plans_of(ranks, store, folder / "left", 5)
    return {"straight": straight, "stopped": stopped, "resumed": resumed, "left": left}
