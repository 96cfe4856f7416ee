"""Neighbours: anchors meet the classes that are hard for them, those with the nearest centroids in a mining round."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from hardmine.mining.grouping import grouped_classes
from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.random import RandomPairs
from hardmine.options import Options
from hardmine.store.rounds import Round

_SPARE = 16  # nearest classes beyond a group's, for those that are taken, overlap or have a single patch


class NeighbourOptions(Options):
    """group: classes of a group, a class drawn at random and its nearest ones. share: part of the batch filled with
    groups; the rest is drawn at random (0: the `random` sampler's batches)."""

    group: int = Field(8, ge=2)
    share: float = Field(1.0, ge=0, le=1)


@samplers.register("neighbours")
class Neighbours(RandomPairs):
    """Batches of groups of near classes; positives uniform over the other entries of the class.

    Classes are drawn without replacement, in an order that depends on seed and step alone. Each that is not in the
    batch yet enters it with its group - 1 nearest classes that are not, until `share` of the batch is full; then they
    enter by themselves. Options in `NeighbourOptions`."""

    Options = NeighbourOptions
    options: NeighbourOptions

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.needs_nearest = self.options.group - 1 + _SPARE
        self._usable = np.diff(self.entries.offsets) >= 2
        self._mined_at = self._counted = 0
        self._seen = np.zeros(len(self._usable), bool)

    def use_nearest(self, nearest: np.ndarray, source: Round | None, step: int) -> None:
        """See `Sampler.use_nearest`."""
        super().use_nearest(nearest, source, step)
        self._mined_at = self._counted = step
        self._seen[:] = False

    def choose_classes(self, rng: np.random.Generator) -> np.ndarray:
        """See `PairSampler.choose_classes`."""
        assert self.nearest is not None  # `plan` has checked
        return grouped_classes(
            super().choose_classes(rng),
            self.nearest,
            self._usable,
            count=self.pairs,
            group=self.options.group,
            share=self.options.share,
        )

    def scalars(self, step: int) -> dict[str, float]:
        """coverage: share of the classes with a pair that were in a batch since the last mining, before `step`."""
        if self.nearest is None:
            return {}
        for done in range(self._counted, step):
            self._seen[self.choose_classes(self.random(done))] = True
        self._counted = max(self._counted, step)
        return {"coverage": float(self._seen.sum() / len(self.classes))}
