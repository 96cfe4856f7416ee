"""PADS from the store: the learned distribution over distances also chooses which classes meet in a batch.

Among thousands of classes two that are drawn evenly are hardly ever at the distances that the policy wants, whatever
the miner does afterwards. The round knows each class's nearest ones and how far they are. Ours, not the paper's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from hardmine.errors import StoreError
from hardmine.mining.grouping import Choose
from hardmine.mining.pads.classes import draw_places, item_distances
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.support import Support
from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.class_groups import GroupOptions, GroupSampler
from hardmine.store.rounds import Round


class PadsClassOptions(GroupOptions):
    """candidates: nearest classes that a group's classes are drawn among."""

    candidates: int = Field(64, ge=2)


@samplers.register("pads-classes")
class PadsClasses(GroupSampler):
    """As `class-groups`, but a group's classes are drawn among the `candidates` nearest of its first, in proportion to
    the policy's probability of the distance at which their items lie. lag: steps after which a new distribution is
    used, so that plans can be made ahead. Options in `PadsClassOptions`."""

    Options = PadsClassOptions
    options: PadsClassOptions

    def __init__(self, *args: Any, lag: int = 16, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.needs_nearest, self.lag = self.options.candidates, lag
        self._known: list[tuple[int, Distribution]] = []  # (steps done when it was learned, distribution), ascending
        self._apart = np.zeros((0, 0))

    def use(self, distribution: Distribution, step: int) -> None:
        """Plan with this distribution, learned after `step` optimiser steps, from step + lag on; the first one counts
        from the beginning."""
        self._known.append((step, distribution))
        recent = [i for i, (learned, _) in enumerate(self._known) if learned <= step - 2 * self.lag]
        self._known = self._known[max(recent, default=0) :]

    def distribution(self, step: int) -> Distribution:
        """The one that the plan of `step` uses. Raises StoreError where none was given."""
        if not self._known:
            raise StoreError("this sampler draws classes by a distribution over distances: call `use` first")
        return [d for i, (learned, d) in enumerate(self._known) if i == 0 or learned <= step - self.lag][-1]

    def use_nearest(self, nearest: np.ndarray, source: Round | None, step: int) -> None:
        """See `Sampler.use_nearest`."""
        super().use_nearest(nearest, source, step)
        if source is None:
            raise StoreError("this sampler needs the centroids of a mining round beside the nearest classes")
        near, apart = (table[:, : nearest.shape[1]] for table in source.nearest_class())
        self._apart = item_distances(source.class_centroid(), near, apart)

    def choose_partners(self, step: int, rng: np.random.Generator) -> Choose:
        """See `GroupSampler.choose_partners`."""
        distribution = self.distribution(step)
        return lambda seed, place, most: place[draw_places(self._apart[seed][place], distribution, most, rng)]

    def state(self, step: int) -> dict[str, Any]:
        """See `Sampler.state`."""
        known = [[learned, list(d.q), d.support.model_dump()] for learned, d in self._known]
        return {**super().state(step), "known": known}

    def load(self, state: dict[str, Any]) -> None:
        """See `Sampler.load`."""
        super().load(state)
        self._known = [(learned, Distribution(Support(**grid), tuple(q))) for learned, q, grid in state["known"]]
