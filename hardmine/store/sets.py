"""What a search goes through: a database and its queries, checked, in an order in which a label is one range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hardmine.errors import InputError, UnknownNameError
from hardmine.store.distances import as_descriptors, as_tensor

METRICS = ("euclidean",)


@dataclass(frozen=True)
class Sets:
    """A database and its queries, checked, the database sorted by (label, row) so that one label is one range."""

    base: torch.Tensor  # float32 (N, D)
    rows: np.ndarray  # int64 (N,)
    query: torch.Tensor  # float32 (Q, D)
    self_column: np.ndarray  # int64 (Q,): the query's own place in the database, -1 where it has none
    same_label: np.ndarray | None  # int64 (Q, 2): range of the columns with the query's label
    of_itself: bool  # the queries are the database's own items


def check_metric(metric: str) -> None:
    """Raises UnknownNameError where the metric is not one that stores, indexes and searches here share."""
    if metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)


def prepare(
    database: np.ndarray | torch.Tensor,
    rows: np.ndarray,
    queries: np.ndarray | torch.Tensor | None,
    query_rows: np.ndarray | None,
    labels: np.ndarray | None,
    query_labels: np.ndarray | None,
    metric: str,
    device: torch.device | str | None,
) -> Sets:
    """The two sets, checked. Arguments and errors as `nearest`."""
    check_metric(metric)
    rows = np.asarray(rows, np.int64)
    base = as_descriptors(database, rows)
    if queries is None:
        query, query_rows, query_labels = base, rows, labels
    else:
        query = as_descriptors(queries, query_rows)
    _check_lengths(base, rows, labels, query, query_rows, query_labels)
    order = np.lexsort((rows, np.zeros(len(rows)) if labels is None else labels))
    by_row = np.argsort(rows[order])
    rows, base = rows[order], in_order(base, order)
    if len(np.unique(rows)) != len(rows):
        raise InputError("the database names a row twice; a neighbour list needs distinct rows")
    self_column = np.full(len(query), -1, np.int64)
    if query_rows is not None and len(rows):
        place = by_row[np.minimum(np.searchsorted(rows[by_row], query_rows), len(rows) - 1)]
        self_column = np.where(rows[place] == query_rows, place, -1)
    same_label = None
    if labels is not None and query_labels is not None:
        ordered = np.asarray(labels)[order]
        same_label = np.stack(
            [np.searchsorted(ordered, query_labels, "left"), np.searchsorted(ordered, query_labels, "right")], 1
        )
    return Sets(as_tensor(base, device), rows, as_tensor(query, device), self_column, same_label, queries is None)


def _check_lengths(
    base: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray | None,
    query: np.ndarray,
    query_rows: np.ndarray | None,
    query_labels: np.ndarray | None,
) -> None:
    if query.shape[1] != base.shape[1]:
        raise InputError(f"queries have {query.shape[1]} dimensions, the database has {base.shape[1]}")
    if (labels is None) != (query_labels is None):
        raise InputError("labels of the database and of the queries go together: one of them is missing")
    for name, values, count in (
        ("rows", rows, len(base)),
        ("labels", labels, len(base)),
        ("query_rows", query_rows, len(query)),
        ("query_labels", query_labels, len(query)),
    ):
        if values is not None and np.shape(values) != (count,):
            raise InputError(f"{name} has shape {np.shape(values)}, its descriptors number {count}")


def in_order(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    """x[order], without a copy where they are in that order already, as those of a round are."""
    return x if np.array_equal(order, np.arange(len(x))) else x[order]
