"""Average precision of retrieval, from the ranks of the matches.

A query with R matches at the ranks r_1 < ... < r_R has precision i / r_i at the i-th of them.

AP     sum of i / r_i over all matches, over R.
AP@R   the same sum over the matches with r_i <= R, over R. Musgrave et al., A Metric Learning Reality Check, ECCV 2020.
area   under precision over recall as straight lines join its points: sum of (q_i + i / r_i) / 2 over all matches, over
       R, where q_i is the precision at the rank before r_i, and 1 where there is none. Market-1501's own evaluation.

Their means over the queries are mAP, MAP@R, and again mAP.
"""

from __future__ import annotations

import numpy as np

from hardmine.errors import InputError
from hardmine.metrics.ranks import Ranks


def average_precision(ranks: Ranks, relevant: np.ndarray) -> np.ndarray:
    """AP of each query, float64 (Q,) in (0, 1].

    relevant: int (Q,), matches of the query in the whole database, itself left out; 1 or more. Raises InputError where
    matches are not listed."""
    _check_all_listed(ranks, relevant)
    return _mean(ranks, relevant, _place(ranks) / ranks.rank)


def trapezoid_average_precision(ranks: Ranks, relevant: np.ndarray) -> np.ndarray:
    """The area under each query's precision over recall, float64 (Q,) in (0, 1] (specs 10). Arguments and errors as
    `average_precision`, which it never exceeds."""
    _check_all_listed(ranks, relevant)
    place = _place(ranks)
    before = np.where(ranks.rank > 1, (place - 1) / np.maximum(ranks.rank - 1, 1), 1.0)
    return _mean(ranks, relevant, (before + place / ranks.rank) / 2)


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
    return _mean(ranks, relevant, np.where(ranks.rank <= relevant[ranks.query], _place(ranks) / ranks.rank, 0.0))


def _check_all_listed(ranks: Ranks, relevant: np.ndarray) -> None:
    ranks.check_relevant(relevant)
    missing = int((relevant - ranks.listed).sum())
    if missing:
        raise InputError(f"the ranks of {missing} matches are not listed; mAP needs the rank of every match")


def _place(ranks: Ranks) -> np.ndarray:
    """int64 (M,): which of its query's matches each is, from 1."""
    return np.arange(1, len(ranks.rank) + 1) - ranks.offsets[ranks.query]


def _mean(ranks: Ranks, relevant: np.ndarray, each: np.ndarray) -> np.ndarray:
    """What there is of each match, (M,), summed over a query's, over its relevant: float64 (Q,)."""
    return np.bincount(ranks.query, each, len(ranks)) / relevant
