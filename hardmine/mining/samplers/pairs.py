"""What every sampler of pairs does: draw the classes and the anchors of a step, and leave the positive to its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np

from hardmine.errors import InputError
from hardmine.mining.entries import Entries
from hardmine.mining.plan import BatchPlan
from hardmine.mining.samplers.base import Sampler

Augment = Literal["none", "fliprot", "dihedral", "tfeat"]
# The codes of `pipeline.pixels.turn_and_flip` that are drawn from, evenly
_DIHEDRAL_CODES: dict[str, tuple[int, ...]] = {
    "none": (0,),
    "fliprot": (0, 1, 2, 3),
    "dihedral": (0, 1, 2, 3, 4, 5, 6, 7),
    "tfeat": (0, 0, 0, 6, 3, 5, 4, 4, 4, 2, 7, 1),  # as drawn, then upside down
}
_REDRAWS = 16  # of negatives that are none, before those that are get listed


class PairSampler(Sampler):
    """A batch sampler of `BatchPlan`s.

    entries: of one split; classes with fewer than two entries cannot give a pair and are left out (`skipped_classes`).
    pairs: n, pairs a batch, each of another class (`distinct_classes`). seed: every plan is a function of (seed, step)
    and of what was recorded or mined before, never of the number of workers. augment: flips and turns drawn for each
    pair: 'fliprot' (HardNet: transpose and mirror, each with probability 1/2), 'tfeat' (with probability 1/2 one of the
    three turns, then with 1/2 upside down), 'dihedral' (all eight, evenly) or 'none'. lag: how many steps late the
    recorded losses are used. A subclass chooses the positives in `choose_positive`.

    Set `draws_negatives`, and each pair also gets a random entry of another class, HardNet's and GOR's random
    non-match; set `overlaps`, of two arrays of classes, and never one of a class that overlaps the pair's.
    """

    distinct_classes: ClassVar[bool] = True

    def __init__(
        self,
        entries: Entries,
        options: Any = None,
        *,
        pairs: int,
        seed: int = 0,
        augment: Augment = "none",
        lag: int = 16,
    ):
        super().__init__(entries, options, seed=seed)
        self.pairs, self.augment, self.lag = pairs, augment, lag
        self.draws_negatives = False
        self.overlaps: Callable[[np.ndarray, np.ndarray], np.ndarray] = _no_overlap
        self.classes = np.flatnonzero(np.diff(entries.offsets) >= 2)
        self.skipped_classes = int(np.count_nonzero(np.diff(entries.offsets) == 1))
        if len(self.classes) < (pairs if self.distinct_classes else 1):
            raise InputError(
                f"a batch of {pairs} pairs needs {pairs} classes with two patches or more, but this split has "
                f"{len(self.classes)} ({self.skipped_classes} have one patch): choose fewer pairs, or views for "
                "classes with one patch"
            )

    @property
    def steps_per_pass(self) -> int:
        """See `Sampler.steps_per_pass`."""
        return max(1, len(self.classes) // self.pairs)

    def plan(self, step: int) -> BatchPlan:
        """The batch of `step`. AdaSample's Algorithm 1, lines 1-3, without line 3's choice of the positive."""
        waits, rng = self.waits(step), self.random(step)
        classes = self.even_classes(rng) if waits else self.choose_classes(rng)
        start, size = self.entries.offsets[classes], np.diff(self.entries.offsets)[classes]
        anchor = np.minimum((rng.random(self.pairs) * size).astype(np.int64), size - 1)
        codes = np.array(_DIHEDRAL_CODES[self.augment], np.uint8)
        dihedral = codes[rng.integers(len(codes), size=self.pairs, dtype=np.uint8)]
        if waits:
            positive, weight = uniform_other(size, anchor, rng), np.ones(len(size))
        else:
            positive, weight = self.choose_positive(step, classes, size, anchor, rng)
        a, p = start + anchor, start + positive
        row, view = self.entries.row, self.entries.view
        pairs = (step, row[a], row[p], view[a], view[p], classes, weight.astype(np.float32), dihedral)
        if not self.draws_negatives:
            return BatchPlan(*pairs)
        other = self._negative_classes(step, classes)
        n = self._entry_of(other, self.random(step, stream=2))
        return BatchPlan(*pairs, row[n], view[n], other)

    @property
    def items(self) -> int:
        """See `Sampler.items`."""
        return self.pairs

    def _negative_classes(self, step: int, classes: np.ndarray) -> np.ndarray:
        """For each pair another class, int64 (n,), as `negative_weights` says: drawn again while it is none. From
        random numbers of their own, so that the pairs are those of a plan without negatives."""
        rng, weights = self.random(step, stream=1), self.negative_weights()
        up_to = np.cumsum(weights)
        other, bad = np.zeros(len(classes), np.int64), np.ones(len(classes), bool)
        for _ in range(_REDRAWS):
            other[bad] = np.searchsorted(up_to, rng.integers(up_to[-1], size=int(bad.sum())), side="right")
            bad = (other == classes) | self.overlaps(classes, other)
            if not bad.any():
                return other
        for i in np.flatnonzero(bad):
            all_classes = np.arange(len(weights))
            none = (all_classes == classes[i]) | self.overlaps(np.full(len(weights), classes[i]), all_classes)
            left = np.where(none, 0, weights)
            if not left.any():
                raise InputError(
                    f"class {classes[i]} has no random negative: every other class of the split overlaps it in a "
                    "photograph, or there is none; lower data.exclude_overlap, or add data"
                )
            other[i] = rng.choice(len(left), p=left / left.sum())
        return other

    def _entry_of(self, classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """An entry of each class, int64 (n,), drawn evenly."""
        size = np.diff(self.entries.offsets)[classes]
        return self.entries.offsets[classes] + np.minimum((rng.random(len(size)) * size).astype(np.int64), size - 1)

    def negative_weights(self) -> np.ndarray:
        """In proportion to what the classes are drawn as random negatives, int64 (C,): evenly, if they have an entry
        at all (HardNet, specs 3.3)."""
        return (np.diff(self.entries.offsets) > 0).astype(np.int64)

    def choose_classes(self, rng: np.random.Generator) -> np.ndarray:
        """The classes of a batch, int64 (n,), each with two entries or more."""
        return self.even_classes(rng)

    def even_classes(self, rng: np.random.Generator) -> np.ndarray:
        """Classes int64 (n,), each with two entries or more, drawn evenly, without repetition."""
        return self.classes[rng.choice(len(self.classes), self.pairs, replace=False)]

    def choose_positive(
        self, step: int, classes: np.ndarray, size: np.ndarray, anchor: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slots of the positives int64 (n,), never the anchor's, and the weights (n,) with mean 1."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it chooses positives")


def uniform_other(size: np.ndarray, anchor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A slot of each class, int64 (n,), drawn evenly from all but the anchor's: one random number for each class."""
    other = np.minimum((rng.random(len(size)) * (size - 1)).astype(np.int64), size - 2)
    return other + (other >= anchor)


def _no_overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.zeros(len(first), bool)
