"""Average precision and ROC area of a ranked list, as the HPatches benchmark computes them.

Entries are sorted by falling score, equal scores in the order given. Two programs, two areas under one curve:

average_precision   Python: the trapezoid rule over (recall, precision), the curve starting at recall 0, precision 1.
step_precision      MATLAB (VLFeat's vl_pr): the mean of the precisions at which recall steps; the benchmark's paper.

What MATLAB prints as `auc` is what Python prints as `ap`.
Source: hpatches/hpatches-benchmark, python/utils/metrics.py and matlab/+bench; Balntas et al., CVPR 2017.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hardmine.errors import InputError

_TINY = 1e-10  # the benchmark's guard against 0 / 0


class PrecisionRecall(NamedTuple):
    """After 0, 1, .., K entries of the list: precision and recall, float64 (K + 1,); the first precision is 1."""

    precision: np.ndarray
    recall: np.ndarray


def precision_recall(scores: ArrayLike, labels: ArrayLike, numpos: int | None = None) -> PrecisionRecall:
    """The curve of K scored entries.

    scores: (K,), larger is better. labels: bool (or 0 and 1) (K,). numpos: positives there are in all; those that are
    not listed are never retrieved. Raises InputError, see `_ranked`, and where numpos is less than are listed.
    """
    ranked = _ranked(scores, labels)
    true = np.append(0, np.cumsum(ranked)).astype(np.float64)
    seen = np.arange(len(true), dtype=np.float64)
    positives = int(true[-1]) if numpos is None else numpos
    if positives < true[-1]:
        raise InputError(f"numpos is {numpos}, but {int(true[-1])} positives are listed")
    precision = np.maximum(true, _TINY) / np.maximum(seen, _TINY)
    return PrecisionRecall(precision, true / max(positives, _TINY))


def average_precision(scores: ArrayLike, labels: ArrayLike, numpos: int | None = None) -> float:
    """The Python benchmark's `ap`, in [0, 1]; see `precision_recall`. 0 where there is no positive."""
    precision, recall = precision_recall(scores, labels, numpos)
    return float(np.trapezoid(precision, recall))


def step_precision(scores: ArrayLike, labels: ArrayLike, numpos: int | None = None) -> float:
    """The MATLAB benchmark's `ap`, in [0, 1]; see `precision_recall`. 0 where there is no positive."""
    precision, recall = precision_recall(scores, labels, numpos)
    return float(np.diff(recall) @ precision[1:])


def roc_area(scores: ArrayLike, labels: ArrayLike) -> float:
    """The benchmark's ROC `auc`, in [0, 1]: one point per entry, so that entries of equal score count in their order.

    Arguments and errors as for `precision_recall`. 0 where there are only positives or none.
    """
    ranked = _ranked(scores, labels)
    true, false = np.append(0, np.cumsum(ranked)), np.append(0, np.cumsum(~ranked))
    return float(np.trapezoid(true / max(true[-1], _TINY), false / max(false[-1], _TINY)))


def average_precisions_of_ranks(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both average precisions of lists of which only the positives' places are known.

    ranks: int (..., P), ascending along the last axis: the 1-based place of each of a list's P positives, all of them
    retrieved. Returns (Python's, MATLAB's) float64 (...). Precision changes with recall at those places alone, so this
    is what the functions above give for the whole list.
    """
    found = np.arange(1, ranks.shape[-1] + 1)
    at = found / ranks
    before = np.maximum(found - 1, _TINY) / np.maximum(ranks - 1, _TINY)  # precision one entry earlier
    return ((before + at) / 2).mean(-1), at.mean(-1)


def _ranked(scores: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """The labels, bool (K,), by falling score. Raises InputError for shapes that differ, scores that are not finite, or
    labels other than 0 and 1."""
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if scores.ndim != 1 or labels.shape != scores.shape:
        raise InputError(f"scores have shape {scores.shape}, labels {labels.shape}; expected (K,) for both")
    broken = np.flatnonzero(~np.isfinite(scores))
    if len(broken):
        raise InputError(f"{len(broken)} of {len(scores)} scores are not finite, entry {broken[0]} first")
    if labels.dtype != np.bool_:
        if not np.isin(labels, (0, 1)).all():
            raise InputError(f"labels hold other values than 0 and 1, {labels[~np.isin(labels, (0, 1))][0]!r} for one")
        labels = labels.astype(bool)
    return labels[np.argsort(-scores, kind="stable")]
