"""How far apart descriptors lie inside classes and between them, as the policy sees it.

Section 4 of the PADS paper ("intra- and inter-class distances"), in the form of the released code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardmine.errors import InputError


@dataclass(frozen=True)
class ClassSpread:
    """intra: mean over classes of the mean cosine distance of two of its items. inter: mean cosine distance of two
    classes' mean directions. lone: classes of one item, which have no intra distance and are left out of that mean."""

    intra: float
    inter: float
    lone: int


def class_spread(descriptors: np.ndarray, labels: np.ndarray) -> ClassSpread:
    """Cosine distances 1 - cos within and between classes, summed in float64.

    descriptors: float (N, D), of any norm; a row of zeros has cosine 0 with all others. labels: int (N,). The mean over
    ordered pairs i != j of unit vectors is (|sum x|^2 - n) / (n (n - 1)), so that no table of pairs is made. Raises
    InputError where there are fewer than two classes, or none of two items.
    """
    if len(descriptors) != len(labels):
        raise InputError(f"{len(labels)} labels for {len(descriptors)} descriptors")
    _, label, size = np.unique(labels, return_inverse=True, return_counts=True)
    if len(size) < 2 or size.max() < 2:
        raise InputError(
            f"distances within and between classes need two classes, and one of two items; these {len(labels)} items "
            f"are of {len(size)}, the largest of {size.max(initial=0)}: validate on more"
        )
    x = _unit(np.asarray(descriptors, np.float64))
    order = np.argsort(label, kind="stable")
    sums = np.add.reduceat(x[order], np.concatenate([[0], np.cumsum(size)[:-1]]), axis=0)
    own = np.bincount(label, np.square(x).sum(1))  # what each class's items add with themselves: 1 each
    several = size > 1
    pairs = (size * (size - 1))[several]
    intra = 1 - (np.square(sums).sum(1) - own)[several] / pairs
    directions = _unit(sums)
    count, cosines = len(size), np.square(directions.sum(0)).sum() - np.square(directions).sum()
    return ClassSpread(
        float(intra.mean()), float(1 - cosines / (count * (count - 1))), int(np.count_nonzero(size == 1))
    )


def _unit(x: np.ndarray) -> np.ndarray:
    norm = np.sqrt(np.square(x).sum(1, keepdims=True))
    return x / np.where(norm > 0, norm, 1)
