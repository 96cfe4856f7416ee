"""Random pairs: HardNet's pair generation, two distinct entries of each class."""

from __future__ import annotations

import numpy as np

from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.pairs import PairSampler


@samplers.register("random")
class RandomPairs(PairSampler):
    """Positives uniform over the other entries of the class (specs 3.3); needs no mining."""

    def choose_positive(
        self, step: int, classes: np.ndarray, size: np.ndarray, anchor: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `PairSampler.choose_positive`."""
        return uniform_other(size, anchor, rng), np.ones(len(size))


def uniform_other(size: np.ndarray, anchor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A slot of each class, int64 (n,), drawn evenly from all but the anchor's: one random number for each class."""
    other = np.minimum((rng.random(len(size)) * (size - 1)).astype(np.int64), size - 2)
    return other + (other >= anchor)
