"""Recall at K, in the two senses that the name has in the literature.

any hit   R@K of image retrieval: the share of queries with at least one of their class among the K nearest.
fraction  the share of a query's class that is among the K nearest, averaged over queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hardmine.metrics.ranks import Ranks, ranks_of_lists


def any_hit(ranks: Ranks, k: int) -> np.ndarray:
    """1 for each query with a match among its k nearest, else 0: float64 (Q,); its mean is R@k (specs 9.2), and the
    cumulative matching characteristic (CMC) of re-identification at rank k (specs 10).

    Raises InputError where the ranks do not go so far."""
    return (ranks.within(k) > 0).astype(np.float64)


def recall_fraction(ranks: Ranks, relevant: np.ndarray, k: int) -> np.ndarray:
    """Of each query's matches, the share among its k nearest: float64 (Q,) in [0, 1].

    relevant: int (Q,), matches of the query in the whole database, itself left out; 1 or more. Raises InputError."""
    ranks.check_relevant(relevant)
    return ranks.within(k) / relevant


def recall_at(found: np.ndarray, labels: np.ndarray, ks: Sequence[int]) -> dict[int, float]:
    """R@K (any hit) for each K, in [0, 1], of neighbour lists.

    found: int (Q, K'), the labels of each query's neighbours, nearest first, itself not among them, -1 where there is
    none. labels: int (Q,), of the queries. Every query counts: leave out those without a match first. Raises InputError
    where a K is not in 1..K', or there is no query.
    """
    ranks = ranks_of_lists(found, labels)
    return {k: float(any_hit(ranks, k).mean()) for k in ks}
