"""Recall at K, in the two senses that the name has in the literature, from the labels of neighbour lists.

any hit   R@K of image retrieval: the share of queries with at least one of their class among the K nearest.
fraction  the share of a query's class that is among the K nearest, averaged over queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hardmine.errors import InputError


def recall_at(found: np.ndarray, labels: np.ndarray, ks: Sequence[int]) -> dict[int, float]:
    """R@K (any hit) for each K, in [0, 1].

    found: int (Q, K'), the labels of each query's neighbours, nearest first, itself not among them, -1 where there is
    none. labels: int (Q,), of the queries. Every query counts: leave out those without a match first. Raises InputError
    where a K is not in 1..K', or there is no query.
    """
    hit = _hits(found, labels, ks)
    return {k: float(hit[:, :k].any(1).mean()) for k in ks}


def recall_fraction_at(
    found: np.ndarray, labels: np.ndarray, relevant: np.ndarray, ks: Sequence[int]
) -> dict[int, float]:
    """Mean over the queries of (items of the query's class among the K nearest) / (all of them), for each K, in [0, 1].

    relevant: int (Q,), items of the query's class in the database, the query itself left out; 1 or more. Else as
    `recall_at`.
    """
    hit = _hits(found, labels, ks)
    if relevant.shape != labels.shape or (relevant < 1).any():
        raise InputError("relevant counts the matches of each query, 1 or more: leave out queries without a match")
    return {k: float((hit[:, :k].sum(1) / relevant).mean()) for k in ks}


def _hits(found: np.ndarray, labels: np.ndarray, ks: Sequence[int]) -> np.ndarray:
    if found.ndim != 2 or labels.shape != (len(found),) or not len(found):
        raise InputError(f"neighbours have shape {found.shape} for {labels.shape} queries; expected (Q, K) and (Q,)")
    wrong = [k for k in ks if not 1 <= k <= found.shape[1]]
    if wrong:
        raise InputError(f"recall at {wrong[0]} needs neighbour lists of that length, these have {found.shape[1]}")
    return (found == labels[:, None]) & (found >= 0)
