"""What PADS hears during training: metrics of the present weights on held-out items, each M steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hardmine.errors import InputError
from hardmine.metrics.clustering import k_means, nmi
from hardmine.metrics.recall import recall_at
from hardmine.mining.exclusions import read_exclusions
from hardmine.mining.miners import Miner
from hardmine.mining.miners.pads import PadsMiner
from hardmine.mining.pads.controller import Pads
from hardmine.mining.pads.held_out import HeldOut
from hardmine.mining.pads.metrics import class_spread
from hardmine.mining.pads.state import Metrics
from hardmine.mining.samplers import Sampler
from hardmine.mining.samplers.class_balanced import ClassBalanced
from hardmine.mining.samplers.pads_classes import PadsClasses
from hardmine.store.patches import PatchStore
from hardmine.store.search import nearest
from hardmine.train.recipe import Policy, Recipe

Describe = Callable[[np.ndarray], np.ndarray]  # int64 (n,) rows -> float32 (n, D) descriptors


class Feedback:
    """The policy of a run, the miner that draws by it, and the held-out items that reward it.

    Where the sampler chooses classes by the distribution it is told of each change as well. redraw: the items to draw
    from, steps between two draws, and seed, where the held-out items are drawn anew.
    """

    def __init__(
        self,
        policy: Pads,
        miner: PadsMiner,
        rows: np.ndarray,
        labels: np.ndarray,
        sampler: Sampler,
        redraw: tuple[HeldOut, int, int] | None = None,
    ):
        self.policy, self.miner, self.rows, self.labels, self.sampler = policy, miner, rows, labels, sampler
        self.redraw = redraw

    def hold_out(self, step: int, stop: int) -> int:
        """Hold out what is held out from `step` steps on, and train on the rest; the step, `stop` at most, before which
        it must be called again."""
        if self.redraw is None:
            return stop
        items, every, seed = self.redraw
        self.sampler.entries, self.rows, self.labels = items.draw(seed, step // every)
        return min(stop, (step // every + 1) * every)

    def due(self, step: int) -> bool:
        """Whether the policy is asked after `step` optimiser steps."""
        return self.policy.due(step)

    def ask(self, step: int, describe: Describe) -> dict[str, float]:
        """Measure the present weights, let the policy act, draw by its distribution from now on. Figures for the log:
        the metrics, the reward and the mean distance of the distribution."""
        found = self.measure(describe(self.rows))
        self._use(self.policy.observe(step, found), step)
        recalls = {f"policy/r@{k}": value for k, value in zip(self.policy.options.recall_at, found.recall)}
        centres = self.policy.distribution.support.edges()
        middle = float(((centres[1:] + centres[:-1]) / 2 * self.policy.distribution.p).sum())
        figures = {"policy/nmi": found.nmi, "policy/intra": found.intra, "policy/inter": found.inter}
        return {**recalls, **figures, "policy/reward": float(self.policy.history.reward[-1]), "policy/distance": middle}

    def measure(self, descriptors: np.ndarray) -> Metrics:
        """The metrics that the policy's options name (specs 1.4), of held-out descriptors (n, D)."""
        options = self.policy.options
        recall: tuple[float, ...] = ()
        if "recall" in options.metrics or "r1" in options.reward:
            lists = nearest(descriptors, np.arange(len(self.rows)), max(options.recall_at))
            found = np.where(lists.rows >= 0, self.labels[lists.rows], -1)
            recall = tuple(recall_at(found, self.labels, options.recall_at).values())
        mutual = 0.0
        if "nmi" in options.metrics or "nmi" in options.reward:
            mutual = nmi(k_means(descriptors, len(np.unique(self.labels)), seed=0), self.labels)
        spread = class_spread(descriptors, self.labels) if "dists" in options.metrics else None
        if spread is None:
            return Metrics(recall=recall, nmi=mutual)
        return Metrics(recall=recall, nmi=mutual, intra=spread.intra, inter=spread.inter)

    def follow(self, state: Mapping[str, Tensor], step: int) -> None:
        """Go where `ask` in another process has led, whose `state` this is."""
        self.policy.load_state_dict(state)
        self._use(self.policy.distribution, step)

    def _use(self, distribution: Any, step: int) -> None:
        self.miner.use(distribution)
        if isinstance(self.sampler, PadsClasses):
            self.sampler.use(distribution, step)

    def state(self) -> dict[str, Tensor]:
        """Everything that a continued run needs."""
        return self.policy.state_dict()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a `state`."""
        self.policy.load_state_dict(state)
        self.miner.use(self.policy.distribution)


def build_feedback(recipe: Recipe, store: PatchStore, miner: Miner | None, sampler: Sampler) -> Feedback | None:
    """The feedback of a recipe; None where it has no [policy]. Raises InputError where the policy has no `pads` miner
    to steer, or the held-out split is the one that is trained on."""
    if isinstance(sampler, PadsClasses):
        if not isinstance(miner, PadsMiner):
            raise InputError('sampler "pads-classes" draws by the distribution of the miner "pads": name it in [miner]')
        sampler.use(miner.distribution, 0)
    wanted: Policy | None = recipe.policy
    if wanted is None:
        return None
    if not isinstance(miner, PadsMiner):
        raise InputError('[policy] steers the miner "pads": name it in [miner], or leave [policy] out')
    split, training = store.resolve_split(wanted.split), store.resolve_split(recipe.data.split)
    if split == training:
        raise InputError(
            f"policy.split: the reward must be measured on held-out items, not on {split!r}, which is trained on; "
            "ingest with --split by-item:0.85"
        )
    rows = store.rows(split)
    policy = Pads(wanted, miner.distribution, total_steps=recipe.train.total_steps, seed=recipe.train.seed)
    redraw = None if wanted.redraw_every is None else _redraw(recipe, wanted, wanted.redraw_every, store, rows, sampler)
    return Feedback(policy, miner, rows, store.label[rows], sampler, redraw)


def _redraw(
    recipe: Recipe, wanted: Policy, every: int, store: PatchStore, rows: np.ndarray, sampler: Sampler
) -> tuple[HeldOut, int, int]:
    """What `Feedback` takes. Raises InputError where entries are not free to change, or items that would be trained on
    are measured on as well."""
    if type(sampler) is not ClassBalanced or recipe.views is not None:
        raise InputError(
            'policy.redraw_every changes which items are trained on: it goes with the sampler "class-balanced" without '
            f"views, and not with {recipe.sampler.name!r} or rounds mined of one split"
        )
    for each in [recipe.validation, *recipe.evaluation]:
        if each is not None and each.split == wanted.split and Path(each.store).samefile(recipe.data.store):
            raise InputError(
                f"policy.redraw_every trains on items of the split {wanted.split!r}, which is measured on as well: "
                "validate and evaluate on another one"
            )
    if recipe.data.exclude is not None:
        rows = np.setdiff1d(rows, read_exclusions(recipe.data.exclude, store).rows)
    return HeldOut.of(sampler.entries, rows, store.label[rows]), every, recipe.train.seed
