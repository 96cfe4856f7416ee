"""Splits that `ingest` makes: whole classes, or whole photographs, go to one side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hardmine.errors import InputError, UnknownNameError

SPLITS = ("train", "val")
RULES = {"by-class": "classes", "by-image": "photographs (or sequences of them)"}


@dataclass(frozen=True)
class Split:
    """A seeded choice of a fraction of the classes, or of the photographs, is `train`; the rest is `val`.

    by-class draws classes. by-image draws photographs and keeps classes that share one together, so that no photograph,
    and no sequence of photographs of one scene, is seen on both sides.
    """

    rule: str
    fraction: float
    seed: int

    def __str__(self) -> str:
        return f"{self.rule}:{self.fraction!r} seed {self.seed}"

    def codes(self, label: np.ndarray, classes: int, image: np.ndarray | None) -> np.ndarray:
        """uint8 (classes,): position in SPLITS of each class. label, image: int64 (N,) of the items; image may be None.

        Raises InputError where a side would be empty or by-image has no photographs to go by."""
        group = self._groups(label, classes, image)
        groups = int(group.max()) + 1
        train = round(self.fraction * groups)
        if not 0 < train < groups:
            raise InputError(
                f"split {self.rule}:{self.fraction:g} of {groups} {RULES[self.rule]} leaves one side empty: choose "
                "another fraction, or none"
            )
        codes = np.ones(groups, np.uint8)
        codes[np.random.default_rng(self.seed).permutation(groups)[:train]] = 0
        return codes[group]

    def _groups(self, label: np.ndarray, classes: int, image: np.ndarray | None) -> np.ndarray:
        """int64 (classes,): classes of one group, numbered from 0, stay together."""
        if self.rule == "by-class":
            return np.arange(classes)
        if image is None:
            raise InputError("split by-image: this dataset does not say which photograph an item is from; use by-class")
        number = np.unique(image, return_inverse=True)[1].reshape(-1)
        size = classes + int(number.max()) + 1
        graph = coo_array((np.ones(len(label), bool), (label, classes + number)), shape=(size, size))
        component = connected_components(graph, directed=False)[1]
        return np.unique(component[:classes], return_inverse=True)[1].reshape(-1)


def parse_split(text: str | None, seed: int) -> Split | None:
    """RULE:FRACTION. Raises UnknownNameError for a rule that is none, InputError for a fraction outside (0, 1)."""
    if text is None:
        return None
    rule, _, fraction = text.partition(":")
    if rule not in RULES:
        raise UnknownNameError("split rule", rule, RULES)
    try:
        value = float(fraction)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise InputError(f"split {text!r}: write {rule}:FRACTION, a fraction of the {RULES[rule]} between 0 and 1")
    return Split(rule, value, seed)
