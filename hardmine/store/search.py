"""Exact nearest neighbours by Euclidean distance, in bounded memory, the same lists however they are found.

Matrix products propose candidates, with a bound on their rounding error (`by_rows`; `self_join` where a set is searched
for its own items). The distances of the candidates are then recomputed pair by pair, and the list sorted by (distance,
row).
"""

from __future__ import annotations

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.store import by_rows, self_join
from hardmine.store.lists import Lists, Neighbours
from hardmine.store.sets import Sets, prepare


def nearest(
    database: np.ndarray | torch.Tensor,
    rows: np.ndarray,
    k: int,
    *,
    queries: np.ndarray | torch.Tensor | None = None,
    query_rows: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    query_labels: np.ndarray | None = None,
    metric: str = "euclidean",
    device: torch.device | str | None = None,
    block: int | None = None,
) -> Neighbours:
    """The k nearest items of `database` (N, D) for each query, the query's own row left out.

    rows: int64 (N,), distinct, the numbers that the lists hold. queries: (Q, D), None for the database itself;
    query_rows: their int64 (Q,) rows, None where none of them is in the database. labels (N,) and query_labels (Q,):
    with them, only items of another label are neighbours. device: where to search, the CPU by default. block: queries
    searched at once, chosen by memory where None; it does not change the result.

    Raises InputError on shapes that do not fit, NumericalError on rows that are not finite.
    """
    sets = prepare(database, rows, queries, query_rows, labels, query_labels, metric, device)
    return _search(sets, k, block, everything=labels is None, others=labels is not None)[0]


def nearest_both(
    database: np.ndarray | torch.Tensor,
    rows: np.ndarray,
    labels: np.ndarray,
    k: int,
    *,
    queries: np.ndarray | torch.Tensor | None = None,
    query_rows: np.ndarray | None = None,
    query_labels: np.ndarray | None = None,
    metric: str = "euclidean",
    device: torch.device | str | None = None,
    block: int | None = None,
) -> tuple[Neighbours, Neighbours]:
    """The k nearest items of any label, and the k nearest of another label, from one pass. Arguments as `nearest`."""
    sets = prepare(database, rows, queries, query_rows, labels, query_labels, metric, device)
    everything, others = _search(sets, k, block, everything=True, others=True)
    return everything, others


def _search(sets: Sets, k: int, block: int | None, *, everything: bool, others: bool) -> list[Neighbours]:
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
    of_any = Lists(len(sets.query), k) if everything else None
    of_others = Lists(len(sets.query), k) if others else None
    if len(sets.rows):
        left = np.arange(len(sets.query))
        if block is None and self_join.pays(sets, k):
            left = self_join.fill(sets, of_any, of_others)
        by_rows.fill(sets, left, of_any, of_others, block)
    return [each.done() for each in (of_any, of_others) if each is not None]
