"""Average precision of retrieval, from the ranks of the matches.

A query with R matches at the ranks r_1 < ... < r_R has precision i / r_i at the i-th of them.

AP     sum of i / r_i over all matches, over R.
AP@R   the same sum over the matches with r_i <= R, over R. Musgrave et al., A Metric Learning Reality Check, ECCV 2020.

Their means over the queries are mAP and MAP@R.
"""

from __future__ import annotations

import numpy as np

from hardmine.errors import InputError
from hardmine.metrics.ranks import Ranks


def average_precision(ranks: Ranks, relevant: np.ndarray) -> np.ndarray:
    """AP of each query, float64 (Q,) in (0, 1].

    relevant: int (Q,), matches of the query in the whole database, itself left out; 1 or more. Raises InputError where
    matches are not listed."""
    ranks.check_relevant(relevant)
    missing = int((relevant - ranks.listed).sum())
    if missing:
        raise InputError(f"the ranks of {missing} matches are not listed; mAP needs the rank of every match")
    return _mean_precision(ranks, relevant, np.ones(len(ranks.rank), bool))


def average_precision_at_r(ranks: Ranks, relevant: np.ndarray) -> np.ndarray:
    """AP@R of each query, float64 (Q,) in [0, 1]. Arguments as `average_precision`. Raises InputError where the ranks
    do not go as far as the largest R."""
    ranks.check_relevant(relevant)
    short = np.zeros(0, np.int64) if ranks.depth is None else np.flatnonzero(relevant > ranks.depth)
    if ranks.depth is not None and len(short):
        raise InputError(
            f"MAP@R looks at as many neighbours as a query has matches: query {short[0]} has {relevant[short[0]]}, its "
            f"ranks go to {ranks.depth[short[0]]}"
        )
    return _mean_precision(ranks, relevant, ranks.rank <= relevant[ranks.query])


def _mean_precision(ranks: Ranks, relevant: np.ndarray, counted: np.ndarray) -> np.ndarray:
    place = np.arange(1, len(ranks.rank) + 1) - ranks.offsets[ranks.query]
    precision = np.where(counted, place / ranks.rank, 0.0)
    return np.bincount(ranks.query, precision, len(ranks)) / relevant
