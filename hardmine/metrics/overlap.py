"""How far two sets of numbers overlap: the area below both of their histograms, 0 for none and 1 for equal ones.

GOR draws the histograms of the similarities of matching and of non-matching pairs ("Learning Spread-out Local Feature
Descriptors", ICCV 2017, Fig. 4 and 5); the overlap coefficient is what one reads off them, sum over bins of the smaller
share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hardmine.errors import InputError

BINS = 100


class Overlap(NamedTuple):
    """coefficient: in [0, 1]. edges: float64 (bins + 1,). first, second: float64 (bins,), densities with area 1."""

    coefficient: float
    edges: np.ndarray
    first: np.ndarray
    second: np.ndarray


def overlap(first: ArrayLike, second: ArrayLike, low: float, high: float, bins: int = BINS) -> Overlap:
    """The overlap of two samples in `bins` equal bins over [low, high]; the last bin holds `high`.

    first, second: (n,) and (m,), finite; a number outside [low, high] counts in the end bin. The coefficient depends on
    the bins: state them with it. Raises InputError for an empty or non-finite sample, or bins that are none.
    """
    if not (np.isfinite([low, high]).all() and low < high and bins >= 1):
        raise InputError(f"{bins} bins over [{low}, {high}]: expected at least one bin and low < high")
    edges = np.linspace(low, high, bins + 1)
    first_density, second_density = _density(first, edges, "first"), _density(second, edges, "second")
    width = (high - low) / bins
    return Overlap(float(np.minimum(first_density, second_density).sum() * width), edges, first_density, second_density)


def _density(values: ArrayLike, edges: np.ndarray, which: str) -> np.ndarray:
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or not len(sample):
        raise InputError(f"the {which} sample has the shape {sample.shape}; expected (n,) with at least one number")
    broken = np.flatnonzero(~np.isfinite(sample))
    if len(broken):
        raise InputError(f"the {which} sample holds {len(broken)} numbers that are not finite, at {broken[0]} first")
    return np.histogram(np.clip(sample, edges[0], edges[-1]), edges, density=True)[0]
