"""Hardpos: the farthest entry of the class as the positive (AdaSample's limit of infinite lambda)."""

from __future__ import annotations

import numpy as np

from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.pairs import PairSampler


@samplers.register("hardpos")
class HardestPositive(PairSampler):
    """Positive = argmax of the distance to the anchor, the first of equals; weights 1."""

    needs_distances = True

    def choose_positive(
        self, step: int, classes: np.ndarray, size: np.ndarray, anchor: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `PairSampler.choose_positive`."""
        assert self.distances is not None  # `plan` has checked
        return farthest(self.distances.from_anchor(classes, anchor)), np.ones(len(size))


def farthest(distance: np.ndarray) -> np.ndarray:
    """Column of the largest distance in each row, int64 (n,), the first of equals; NaN is no candidate."""
    return np.where(np.isnan(distance), -np.inf, distance).argmax(1)
