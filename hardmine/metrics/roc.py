"""The ROC curve of pairs told apart by their distance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hardmine.errors import InputError


class RocCurve(NamedTuple):
    """False and true positive rate when every pair with distance <= threshold is called a match: float64 (K,) each,
    ascending, one point per distinct distance after the first, (0, 0) at -inf."""

    fpr: np.ndarray
    tpr: np.ndarray
    threshold: np.ndarray


def roc_curve(distance: ArrayLike, match: ArrayLike) -> RocCurve:
    """The ROC curve of P pairs; pairs of equal distance enter together, so the order given does not matter.

    distance: (P,), smaller is more alike. match: bool (or 0 and 1) (P,). Raises InputError, see `check_pairs`.
    """
    distance, match = check_pairs(distance, match)
    order = np.argsort(distance)
    distance, match = distance[order], match[order]
    last = np.flatnonzero(np.append(distance[1:] != distance[:-1], True))  # the last pair of each distance
    true = np.cumsum(match)[last]
    false = last + 1 - true
    return RocCurve(
        fpr=np.append(0.0, false / false[-1]),
        tpr=np.append(0.0, true / true[-1]),
        threshold=np.append(-np.inf, distance[last]),
    )


def thinned(curve: RocCurve, steps: int = 1000) -> RocCurve:
    """The points of a curve that can be told apart in a drawing with a logarithmic axis of false positive rates down
    to 1e-5: the first and the last, and in between the last before each step of 1 / steps in the true positive rate, or
    of 5 / steps decades in the false positive rate. At most about 2 `steps` of them, and the line moves by no more."""
    across = np.floor(np.log10(np.maximum(curve.fpr, 1e-5)) * steps / 5)
    up = np.floor(curve.tpr * steps)
    kept = np.append((across[1:] != across[:-1]) | (up[1:] != up[:-1]), True)
    kept[0] = True
    return RocCurve(curve.fpr[kept], curve.tpr[kept], curve.threshold[kept])


def check_pairs(distance: ArrayLike, match: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Distances of pairs and whether they match, as arrays of a float and the bool type.

    Raises InputError unless both are (P,), the distances finite, and both kinds of pairs there.
    """
    distance, match = np.asarray(distance), np.asarray(match)
    if distance.ndim != 1 or match.shape != distance.shape:
        raise InputError(f"distance has shape {distance.shape}, match {match.shape}; expected (P,) for both")
    if match.dtype != np.bool_:
        if not np.isin(match, (0, 1)).all():
            raise InputError(f"match holds other values than 0 and 1, {match[~np.isin(match, (0, 1))][0]!r} for one")
        match = match.astype(bool)
    if not np.issubdtype(distance.dtype, np.floating):
        distance = distance.astype(np.float64)
    broken = np.flatnonzero(~np.isfinite(distance))
    if len(broken):
        raise InputError(
            f"{len(broken)} of {len(distance)} distances are not finite, pair {broken[0]} first: check its descriptors"
        )
    positives = int(match.sum())
    if positives in (0, len(match)):
        raise InputError(f"{positives} matching and {len(match) - positives} other pairs; a rate needs some of both")
    return distance, match
