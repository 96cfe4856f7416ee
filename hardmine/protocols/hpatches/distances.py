"""Distances of the HPatches tasks: L2, L1, and L1 of descriptors under a mask, in float64 as the benchmark has them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist

from hardmine.errors import InputError

Distance = Literal["l2", "l1", "masked_l1"]
BLOCK = 1 << 15  # pairs whose differences are held at once


def unmasked(descriptors: np.ndarray, distance: Distance) -> np.ndarray:
    """What is compared: of `masked_l1` descriptors (N, 2 D), values then masks, their product (N, D); else as they are.
    Raises InputError for an odd length."""
    if distance != "masked_l1":
        return descriptors
    if descriptors.shape[1] % 2:
        raise InputError(
            f"distance masked_l1 takes descriptors of values and as many masks; these have {descriptors.shape[1]} "
            "numbers, which is odd: choose distance=l1"
        )
    values, masks = np.split(descriptors, 2, axis=1)
    return values * masks


def matrix(a: np.ndarray, b: np.ndarray, distance: Distance) -> np.ndarray:
    """Distances float64 (n, m) of (n, D) and (m, D), by direct differences."""
    return cdist(a, b, "euclidean") if distance == "l2" else cdist(a, b, "cityblock")


def listed(a: np.ndarray, first: np.ndarray, b: np.ndarray, second: np.ndarray, distance: Distance) -> np.ndarray:
    """Distances float64 (P,) of a[first] and b[second], a block of pairs at a time."""
    out = np.empty(len(first))
    for start in range(0, len(first), BLOCK):
        part = slice(start, start + BLOCK)
        gap = a[first[part]].astype(np.float64)
        gap -= b[second[part]]
        out[part] = np.sqrt(np.square(gap, out=gap).sum(1)) if distance == "l2" else np.abs(gap, out=gap).sum(1)
    return out


def nearest_two(a: np.ndarray, b: np.ndarray, distance: Distance) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each of a (n, D): the nearest of b (m, D), the first of equally near ones, int64 (n,), its distance, and the
    distance of the second nearest (infinite where m is 1), float64 (n,) each.

    Euclidean distances are screened by one matrix product in float64; all that are within its rounding errors of the
    second are then computed by direct differences, so that equal descriptors tie.
    """
    n, m = len(a), len(b)
    if m == 1:
        return np.zeros(n, np.int64), matrix(a, b, distance)[:, 0], np.full(n, np.inf)
    if distance != "l2":
        return _two_of(matrix(a, b, distance))
    a, b = a.astype(np.float64), b.astype(np.float64)
    norm_a, norm_b = np.einsum("nd,nd->n", a, a), np.einsum("nd,nd->n", b, b)
    square = (a @ b.T) * -2
    square += norm_a[:, None]
    square += norm_b
    error = 4 * np.finfo(np.float64).eps * a.shape[1] * (norm_a + norm_b.max())
    limit = np.partition(square, 1, axis=1)[:, 1] + 2 * error
    row, column = np.nonzero(square <= limit[:, None])
    exact = listed(a, row, b, column, "l2")
    order = np.lexsort((column, exact, row))
    start = np.searchsorted(row, np.arange(n))  # nonzero() gives rows in order, two columns or more of each
    first, second = order[start], order[start + 1]
    return column[first], exact[first], exact[second]


def _two_of(distances: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nearest = np.argmin(distances, axis=1)
    two = np.partition(distances, 1, axis=1)
    return nearest, two[:, 0], two[:, 1]
