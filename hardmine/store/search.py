"""Exact nearest neighbours by Euclidean distance, in blocks of bounded memory, the same lists whatever the block size.

A matrix product proposes K + 16 candidates per query. Its rounding error has a bound (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1); where that bound cannot rule out that an item beyond the candidates belongs to the
list (many equal descriptors), every item within it is taken. The distances of all candidates are then recomputed pair
by pair, and the list sorted by (distance, row).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hardmine.errors import InputError, UnknownNameError
from hardmine.store.distances import as_descriptors, as_tensor, full_float32, listed_distances

SPARE = 16
GROUP = 64  # columns whose minimum stands for them when the smallest of a row are looked for
BLOCK_VALUES = 1 << 25  # distances held at once: 128 MB
MASKED_AT_ONCE = 1 << 22  # positions masked by one indexing operation
METRICS = ("euclidean",)


@dataclass(frozen=True)
class Neighbours:
    """Neighbour lists of Q queries.

    rows: int64 (Q, K), nearest first, equal distances by ascending row; -1 where there are fewer than K neighbours.
    distance: float32 (Q, K), NaN beside -1. ties_cut: lists whose K-th and (K+1)-th neighbours are at the same
    distance. short: lists with fewer than K neighbours.
    """

    rows: np.ndarray
    distance: np.ndarray
    ties_cut: int
    short: int


@dataclass(frozen=True)
class Sets:
    """A database and its queries, checked, the database sorted by (label, row) so that one label is one range."""

    base: torch.Tensor  # float32 (N, D)
    rows: np.ndarray  # int64 (N,)
    query: torch.Tensor  # float32 (Q, D)
    self_column: np.ndarray  # int64 (Q,): the query's own place in the database, -1 where it has none
    same_label: np.ndarray | None  # int64 (Q, 2): range of the columns with the query's label


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
    return Sets(as_tensor(base, device), rows, as_tensor(query, device), self_column, same_label)


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


@torch.inference_mode()
def _search(sets: Sets, k: int, block: int | None, *, everything: bool, others: bool) -> list[Neighbours]:
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
    lists = [Lists(len(sets.query), k) for _ in range(everything + others)]
    if not len(sets.rows):
        return [each.done() for each in lists]
    block = block or max(1, min(4096, BLOCK_VALUES // len(sets.rows)))
    base_norm = (sets.base * sets.base).sum(1)
    longest = float(base_norm.max().sqrt())
    # one buffer for all blocks: fresh memory for each costs half as much time again as the product in it
    values = room(min(block, len(sets.query)), len(sets.rows), sets.base.device)
    with full_float32():
        for start in range(0, len(sets.query), block):
            query = sets.query[start : start + block]
            approximate = values[: len(query)]  # squared distance less |query|^2
            torch.addmm(base_norm, query, sets.base.T, alpha=-2, out=approximate[:, : len(sets.rows)])
            tolerance = rounding(sets.base.shape[1]) * (query.norm(dim=1) + longest) ** 2
            _mask(approximate, sets.self_column[start : start + block])
            if everything:
                lists[0].take(slice(start, start + block), *_listed(sets, query, approximate, tolerance, k))
            if others and sets.same_label is not None:
                mask_ranges(approximate, sets.same_label[start : start + block])
                lists[-1].take(slice(start, start + block), *_listed(sets, query, approximate, tolerance, k))
    return [each.done() for each in lists]


class Lists:
    """Lists under construction. rows, distance: as in Neighbours; tied: bool (Q,), a tie is cut at K."""

    def __init__(self, count: int, k: int):
        self.k = k
        self.rows = np.full((count, k), -1, np.int64)
        self.distance = np.full((count, k), np.nan, np.float32)
        self.tied = np.zeros(count, bool)

    def take(self, queries: slice | np.ndarray, rows: np.ndarray, distance: np.ndarray) -> None:
        """The sorted lists of some queries. rows, distance: (B, at most k + 1); the one beyond k tells of a tie."""
        width = min(self.k, rows.shape[1])
        self.rows[queries, :width], self.distance[queries, :width] = rows[:, :width], distance[:, :width]
        if rows.shape[1] > self.k:
            self.tied[queries] = distance[:, self.k - 1] == distance[:, self.k]

    def done(self) -> Neighbours:
        """The lists as they stand."""
        return Neighbours(self.rows, self.distance, int(self.tied.sum()), int((self.rows[:, -1] < 0).sum()))


def rounding(dim: int) -> float:
    """Bound of the error of a squared distance by norms and a product, over (|a| + |b|)^2: gamma_(D + 32), which covers
    the rounding of the recomputed distance as well."""
    return (dim + 32) * 2.0**-24


def _mask(approximate: torch.Tensor, columns: np.ndarray) -> None:
    line = np.flatnonzero(columns >= 0)
    approximate[torch.from_numpy(line), torch.from_numpy(columns[line])] = torch.inf


def mask_ranges(approximate: torch.Tensor, ranges: np.ndarray) -> None:
    """Set a range of columns of each line to infinity. ranges: int64 (B, 2), first and last + 1."""
    length = ranges[:, 1] - ranges[:, 0]
    if length.sum() > MASKED_AT_ONCE:  # large classes: no list of positions, which would outgrow the block
        for i, (first, last) in enumerate(ranges.tolist()):
            approximate[i, first:last] = torch.inf
        return
    line = np.repeat(np.arange(len(ranges)), length)
    column = np.arange(len(line)) - np.repeat(np.cumsum(length) - length, length) + ranges[line, 0]
    approximate[torch.from_numpy(line), torch.from_numpy(column)] = torch.inf


def _listed(
    sets: Sets, query: torch.Tensor, approximate: torch.Tensor, tolerance: torch.Tensor, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and distances (B, min(k + 1, N)) of a block, sorted; -1 and NaN where masked."""
    value, column = smallest(approximate, k + SPARE, len(sets.rows))
    count = value.shape[1]
    line = torch.arange(len(query), device=query.device).repeat_interleave(count)
    distance = listed_distances(query, line, sets.base, column.reshape(-1)).reshape(-1, count)
    distance[~torch.isfinite(value)] = torch.inf
    keep = min(k + 1, count)
    rows, distances = sorted_lists(sets.rows[column.cpu().numpy()], distance.cpu().numpy(), keep)
    if count < len(sets.rows):
        limit = value[:, k - 1] + 2 * tolerance
        for i in torch.nonzero(torch.isfinite(value[:, -1]) & (value[:, -1] <= limit)).squeeze(1).tolist():
            within = torch.nonzero(approximate[i] <= limit[i]).squeeze(1)
            line = torch.full_like(within, i)
            distance = listed_distances(query, line, sets.base, within)
            row, near = sorted_lists(sets.rows[within.cpu().numpy()][None], distance.cpu().numpy()[None], keep)
            rows[i], distances[i] = row[0], near[0]
    return rows, distances


def room(lines: int, width: int, device: torch.device | None = None) -> torch.Tensor:
    """Memory for lines of `width` values that `smallest` takes without a copy: float32 (lines, whole groups), infinity
    beyond the width."""
    values = torch.empty(lines, -(-width // GROUP) * GROUP, device=device)
    values[:, width:] = torch.inf
    return values


def smallest(values: torch.Tensor, count: int, width: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` smallest of each line, ascending, and their columns. The smallest lie in the `count` groups of
    columns with the smallest minima, and those are found in a 64th of the line. width: with it, `values` is `room` for
    that many columns."""
    if width is None:
        width = values.shape[1]
        values = torch.constant_pad_nd(values, (0, -width % GROUP), torch.inf)
    lines, groups = len(values), values.shape[1] // GROUP
    if groups <= 2 * count:
        return values[:, :width].topk(min(count, width), dim=1, largest=False)
    chosen = values.unflatten(1, (groups, GROUP)).amin(2).topk(count, dim=1, largest=False, sorted=False).indices
    group = chosen + groups * torch.arange(lines, device=values.device)[:, None]
    held = values.view(-1, GROUP).index_select(0, group.reshape(-1)).view(lines, -1)
    value, place = held.topk(count, dim=1, largest=False)
    column = chosen.gather(1, place // GROUP) * GROUP + place % GROUP
    return value, column.clamp_(max=width - 1)  # beyond it there is infinity alone


def in_order(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    """x[order], without a copy where they are in that order already, as those of a round are."""
    return x if np.array_equal(order, np.arange(len(x))) else x[order]


def sorted_lists(rows: np.ndarray, distance: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """The `keep` nearest of each line by (distance, row); an infinite distance becomes row -1 and NaN."""
    order = np.lexsort((rows, distance), axis=-1)[:, :keep]
    rows, distance = np.take_along_axis(rows, order, 1), np.take_along_axis(distance, order, 1)
    masked = np.isinf(distance)
    return np.where(masked, -1, rows), np.where(masked, np.float32(np.nan), distance)
