"""What a sampler plans from: mined rounds, the present network, or nothing; handed to it stretch by stretch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hardmine.errors import InputError, StoreError
from hardmine.mining.class_distances import OnlineDistances, StoredDistances
from hardmine.mining.embed import embed_entries, require_fit
from hardmine.mining.entries import Entries, list_entries
from hardmine.mining.exclusions import Exclusions, KeptDistances, without
from hardmine.mining.overlap import Overlap
from hardmine.mining.samplers import PairSampler, Sampler, samplers
from hardmine.mining.samplers.pads_classes import PadsClasses
from hardmine.options import check
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import Round
from hardmine.train.checkpoint import Checkpoint
from hardmine.train.log import NoLog, RunLog
from hardmine.train.networks import Network
from hardmine.train.ranks import Ranks
from hardmine.train.recipe import DEFAULT_PAIRS, MinedRounds, Recipe
from hardmine.train.round_in_use import RoundInUse
from hardmine.train.runs import Run


class Supply:
    """The entries of a run, its sampler, and the rounds that it plans from.

    Rounds are mined, looked at and pruned by the first process of a training; the others open what it has written, so
    all need one file system. online: the sampler embeds at each step. mined: None where no round is needed."""

    def __init__(self, run: Run, store: PatchStore, excluded: Exclusions | None, network: Network, ranks: Ranks):
        recipe = run.recipe
        self.run, self.store, self.network, self.ranks = run, store, network, ranks
        self.split = store.resolve_split(recipe.data.split)
        self.mined_entries = list_entries(store, self.split, recipe.views)
        self.entries, self.kept = without(self.mined_entries, excluded.rows if excluded else np.zeros(0, np.int64))
        require_fit(store, network, recipe.views)
        self.sampler = build_sampler(recipe, self.entries)
        self.online = getattr(self.sampler.options, "descriptors", "store") == "online"
        angle = self.sampler.needs_distances and getattr(self.sampler.options, "distance", "") == "angle"
        if angle and not network.unit_norm:
            raise InputError(
                f"sampler.distance = 'angle' is of unit descriptors, and network {network.name!r} gives others: choose "
                "'euclidean'"
            )
        self.overlap = Overlap(store, store.rows(self.split), recipe.data.exclude_overlap)
        self.mined: RoundInUse | None = None
        self._handed: Round | None = None  # the round that the sampler has been given
        self.log: RunLog = NoLog()  # until the run has one
        if not self.online and (self.sampler.needs_distances or self.sampler.needs_nearest):
            self.mined = RoundInUse(run, store, self.split, network, self.sampler, self._embed, ranks.device)
        elif recipe.mining != MinedRounds():
            raise InputError(
                f"the recipe's mining section is for samplers that train from mined rounds; {recipe.sampler.name!r} "
                f"{'embeds at each step' if self.online else 'needs none'}: leave the section out"
            )

    def prepare(self, step: int) -> int:
        """Give the sampler what it needs for the next stretch, of the round in use or of the weights of each step; the
        step before which it must be called again."""
        interval = self.run.recipe.train.mining_interval
        if self.online:
            self.sampler.distances = OnlineDistances(self.entries, self._embed_once)
        if self.mined is None:
            return (step // interval + 1) * interval
        if step < self.sampler.rounds_from:
            return self.sampler.rounds_from
        source = self._refresh(self.mined, step)
        if source is not self._handed:
            self._hand_over(source, self.mined.mined_at)
        return self.mined.stop(step)

    def end(self, step: int) -> None:
        """Say how stale the round in use is when the training is over."""
        mined = self.mined
        if mined is not None:
            self.ranks.lead(lambda: mined.end(step, self.log))

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint keeps of the round in use."""
        return None if self.mined is None else self.mined.state()

    def restore(self, saved: Checkpoint) -> None:
        """Go back to the round of a checkpoint."""
        if self.mined is not None:
            self.mined.restore(saved.state["round"], saved.path)

    def prune(self) -> None:
        """Remove rounds that nothing goes back to any more."""
        if self.mined is not None:
            self.mined.prune()

    def descriptors(self, rows: np.ndarray, views: np.ndarray | None = None) -> np.ndarray:
        """Descriptors float32 (n, D) of entries by the present network, in this process."""
        recipe = self.run.recipe
        return embed_entries(self.store, rows, views, self.network, views=recipe.views, device=self.ranks.device)

    def _embed(self, rows: np.ndarray, views: np.ndarray) -> np.ndarray:
        began = time.perf_counter()
        found = self.descriptors(rows, views)
        self.log.seconds(mining=time.perf_counter() - began)
        return found

    def _embed_once(self, rows: np.ndarray, views: np.ndarray) -> np.ndarray:
        """The same numbers in every process, since plans follow from them. Its time is that of the plan."""
        return self.ranks.array(lambda: self.descriptors(rows, views), (len(rows), self.network.dim))

    def _refresh(self, mined: RoundInUse, step: int) -> Round:
        """The round to train from at `step`, in every process."""

        def renew() -> dict[str, Any] | None:
            mined.refresh(step, self.log)
            return mined.state()

        state = self.ranks.lead(renew)
        if not self.ranks.first:
            mined.restore(state, self.run.path)
        assert mined.round is not None  # `refresh` gave one
        return mined.round

    def _hand_over(self, source: Round, mined_at: int) -> None:
        """Give the sampler what it needs of another round."""
        sampler = self.sampler
        if not np.array_equal(source.entry_row, self.mined_entries.row):
            raise StoreError(f"round {source.number} of {self.run.mining} does not list this run's entries")
        if sampler.needs_distances:
            stored = StoredDistances(*source.pair_distance(), self.mined_entries.offsets)
            sampler.distances = stored
            if len(self.kept) < len(self.mined_entries):
                sampler.distances = KeptDistances(stored, self.mined_entries.offsets, self.entries.offsets, self.kept)
        if sampler.needs_nearest:
            near = source.nearest_class()[0][:, : sampler.needs_nearest]
            overlapping = self.overlap.between(np.arange(len(near))[:, None], near)
            sampler.use_nearest(np.where(overlapping, -1, near), source, mined_at)
        self._handed = source


def build_sampler(recipe: Recipe, entries: Entries) -> Sampler:
    """The sampler of a recipe over `entries`. Raises UnknownNameError, InputError."""
    sampler = _built(recipe, entries)
    sampler.rounds_from = recipe.mining.first_step
    return sampler


def _built(recipe: Recipe, entries: Entries) -> Sampler:
    kind = samplers.get(recipe.sampler.name)
    options = check(kind.Options, recipe.sampler.options, f"sampler {recipe.sampler.name!r}")
    knobs = recipe.train
    if issubclass(kind, PairSampler):
        pairs = knobs.pairs or DEFAULT_PAIRS
        return kind(entries, options, pairs=pairs, seed=knobs.seed, augment=knobs.augment, lag=knobs.lag)
    if knobs.pairs is not None or knobs.pairs_per_epoch is not None or knobs.augment != "none":
        raise InputError(
            f"sampler {recipe.sampler.name!r} gives single items: its batch is set by its own options, flips by "
            "[augment] and epochs by train.steps_per_epoch; leave train.pairs and train.augment out, and "
            "train.pairs_per_epoch"
        )
    if issubclass(kind, PadsClasses):
        return kind(entries, options, seed=knobs.seed, lag=knobs.lag)
    sampler = kind(entries, options, seed=knobs.seed)
    if getattr(options, "draw", None) == "pass" and knobs.steps_per_epoch not in (None, sampler.steps_per_pass):
        raise InputError(
            f"train.steps_per_epoch is {knobs.steps_per_epoch}, and a pass over this split's classes has "
            f"{sampler.steps_per_pass} batches: set it to that"
        )
    return sampler
