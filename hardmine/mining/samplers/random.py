"""Random pairs: HardNet's pair generation, two distinct entries of each class."""

from __future__ import annotations

import numpy as np

from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.pairs import PairSampler, uniform_other


@samplers.register("random")
class RandomPairs(PairSampler):
    """Positives uniform over the other entries of the class (specs 3.3); needs no mining."""

    def choose_positive(
        self, step: int, classes: np.ndarray, size: np.ndarray, anchor: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `PairSampler.choose_positive`."""
        return uniform_other(size, anchor, rng), np.ones(len(size))
