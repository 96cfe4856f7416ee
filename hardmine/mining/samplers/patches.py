"""Random patches: anchors uniform over the patches, not over the classes, as GOR's triplets are drawn (specs 5).

Zhang et al., "Learning Spread-out Local Feature Descriptors", ICCV 2017.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.random import RandomPairs


@samplers.register("patches")
class RandomPatches(RandomPairs):
    """Each anchor is drawn evenly from all entries that have a positive, independently of the others, so that large
    classes come more often and a class may come twice in a batch; positives as in `random`; random negatives, where
    they are asked for, evenly from all entries of the other classes."""

    distinct_classes: ClassVar[bool] = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._up_to = np.cumsum(np.diff(self.entries.offsets)[self.classes])  # entries of the first classes

    def choose_classes(self, rng: np.random.Generator) -> np.ndarray:
        """Classes int64 (n,), each with the probability of its size; the anchor is then uniform in the class."""
        entry = rng.integers(self._up_to[-1], size=self.pairs)
        return self.classes[np.searchsorted(self._up_to, entry, side="right")]

    def negative_weights(self) -> np.ndarray:
        """See `PairSampler.negative_weights`: the classes' sizes."""
        return np.diff(self.entries.offsets)
