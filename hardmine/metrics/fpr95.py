"""FPR95: the share of non-matching pairs that are accepted when 95 % of the matching ones are (UBC PhotoTour).

Published figures come from four programs that differ in ties, in the pair that the threshold sits on, and one of them
in the quantity. P matching pairs, r = ceil(0.95 P):

tie-safe   the default: share of non-matches with distance <= the r-th smallest matching distance.
hardnet    non-matches in front of the r-th match in a stable ascending sort. Equal to tie-safe without ties; with them
           it depends on the order of the pairs. DagnyT/hardnet.
tian       non-matches with distance <= the (r + 1)-th smallest matching distance. HyNet, TFeat's notebook.
legacy     of the pairs up to the r-th match, the share that does not match: a false discovery rate, about FPR / 0.95
           for small rates and as many matches as non-matches. MatchNet, TFeat and GOR under TensorFlow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hardmine.errors import InputError, UnknownNameError
from hardmine.metrics.roc import check_pairs


def fpr95(distance: ArrayLike, match: ArrayLike, variant: str = "tie-safe") -> float:
    """The rate, in [0, 1].

    distance: (P,), smaller is more alike. match: bool (or 0 and 1) (P,). variant: see the module. Raises InputError for
    input that has no rate (see `check_pairs`), UnknownNameError for another variant.
    """
    if variant not in _VARIANTS:
        raise UnknownNameError("FPR95 variant", variant, VARIANTS)
    return float(_VARIANTS[variant](*check_pairs(distance, match)))


def fpr95_by_variant(distance: ArrayLike, match: ArrayLike) -> dict[str, float]:
    """The rate by every variant that is defined for so many pairs ('tian' needs 20 matching ones)."""
    checked = check_pairs(distance, match)
    few = _needed(checked[1]) == int(checked[1].sum())
    return {name: float(rate(*checked)) for name, rate in _VARIANTS.items() if not (few and name == "tian")}


def _needed(match: np.ndarray) -> int:
    """r = ceil(0.95 P), in integers."""
    return -(-95 * int(match.sum()) // 100)


def _at_most(distance: np.ndarray, match: np.ndarray, place: int) -> float:
    """Share of non-matches with distance <= the matching distance at `place` (0-based, ascending)."""
    threshold = np.partition(distance[match], place)[place]
    return np.count_nonzero(distance[~match] <= threshold) / np.count_nonzero(~match)


def _tie_safe(distance: np.ndarray, match: np.ndarray) -> float:
    return _at_most(distance, match, _needed(match) - 1)


def _tian(distance: np.ndarray, match: np.ndarray) -> float:
    place, positives = _needed(match), int(match.sum())
    if place == positives:
        raise InputError(
            f"FPR95 variant 'tian' takes the matching distance after the first 95 %, but there are only {positives} "
            "matching pairs: give 20 or more, or choose 'tie-safe'"
        )
    return _at_most(distance, match, place)


def _accepted(distance: np.ndarray, match: np.ndarray) -> tuple[int, int]:
    """Matching pairs, and all, in a stable ascending sort up to the r-th match inclusive."""
    needed = _needed(match)
    sorted_match = match[np.argsort(distance, kind="stable")]
    return needed, int(np.searchsorted(np.cumsum(sorted_match), needed)) + 1


def _hardnet(distance: np.ndarray, match: np.ndarray) -> float:
    true, accepted = _accepted(distance, match)
    return (accepted - true) / np.count_nonzero(~match)


def _legacy(distance: np.ndarray, match: np.ndarray) -> float:
    true, accepted = _accepted(distance, match)
    return (accepted - true) / accepted


_VARIANTS = {"tie-safe": _tie_safe, "hardnet": _hardnet, "tian": _tian, "legacy": _legacy}
VARIANTS = tuple(_VARIANTS)
