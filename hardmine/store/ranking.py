"""The rank of every item with the query's label, over whole rankings, in blocks of bounded memory.

The order is that of the neighbour lists: by (distance, row), the distance being the float32 number of
`pair_distances`. Products in float64 place all items but those whose distance is within the rounding of that number;
only those are computed pair by pair. A match and an item of another label that lie as near as each other are therefore
ordered as in the lists, however many equal descriptors there are, and no N x N table is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hardmine.errors import InputError, UnknownNameError
from hardmine.store.distances import listed_distances
from hardmine.store.sets import Sets, prepare

TIES = ("row", "optimistic")
VALUES_AT_ONCE = 1 << 22  # squared distances held at once: 32 MB


@dataclass(frozen=True)
class MatchRanks:
    """Of the queries from `start` on: rank int64 (M,), from 1, ascending within a query; offsets int64 (B + 1,)."""

    start: int
    rank: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Unsettled:
    """A query with matches and others too close to call. before: int64 (R,), others surely nearer than each match.
    matches: which of them are unsettled; their columns; and place and column of the others in question."""

    line: int
    before: np.ndarray
    matches: np.ndarray
    match_column: np.ndarray
    other_place: np.ndarray
    other_column: np.ndarray


def match_ranks(
    database: np.ndarray | torch.Tensor,
    rows: np.ndarray,
    labels: np.ndarray,
    *,
    queries: np.ndarray | torch.Tensor | None = None,
    query_rows: np.ndarray | None = None,
    query_labels: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    query_groups: np.ndarray | None = None,
    ties: str = "row",
    block: int | None = None,
) -> Iterator[MatchRanks]:
    """Ranks of each query's matches, the items of its label, in its ranking of `database` (N, D) without its own row.

    Arguments as `store.search.nearest`. ties: 'row' orders equal distances by row; 'optimistic' puts a match in front
    of every other item at its distance (Deep_Metric, DSDML and ms-loss count that way). groups, query_groups: int (N,)
    and (Q,): an item of the query's label and of its group is not in its ranking (re-identification leaves out what the
    query's own camera saw of the person). block: queries at once, chosen by memory where None; it does not change the
    result. Raises InputError, NumericalError, UnknownNameError.
    """
    if ties not in TIES:
        raise UnknownNameError("tie rule", ties, TIES)
    sets = prepare(database, rows, queries, query_rows, labels, query_labels, "euclidean", None)
    block = block or max(1, min(1024, VALUES_AT_ONCE // max(1, len(sets.rows))))
    return _blocks(sets, _groups(rows, sets, groups, groups if queries is None else query_groups), ties, block)


Groups = tuple[np.ndarray, np.ndarray]  # of the database in the order of the sets, and of the queries


def _groups(rows: np.ndarray, sets: Sets, groups: np.ndarray | None, query_groups: np.ndarray | None) -> Groups | None:
    if groups is None and query_groups is None:
        return None
    if groups is None or query_groups is None:
        raise InputError("groups of the database and of the queries go together: one of them is missing")
    if groups.shape != sets.rows.shape or query_groups.shape != (len(sets.query),):
        raise InputError(
            f"groups have the shapes {groups.shape} and {query_groups.shape}; expected one for each of "
            f"{len(sets.rows)} items and {len(sets.query)} queries"
        )
    by_row = np.argsort(rows)
    return groups[by_row[np.searchsorted(rows, sets.rows, sorter=by_row)]], query_groups


def _blocks(sets: Sets, groups: Groups | None, ties: str, block: int) -> Iterator[MatchRanks]:
    base = sets.base.double()
    norm = (base * base).sum(1)
    longest = math.sqrt(float(norm.max())) if len(norm) else 0.0
    row_order = np.argsort(np.argsort(sets.rows)) if ties == "row" else np.zeros(len(sets.rows), np.int64)
    for start in range(0, len(sets.query), block):
        query = sets.query[start : start + block].double()
        own = (query * query).sum(1)
        square = torch.addmm(norm, query, base.T, alpha=-2).add_(own[:, None]).numpy()
        slack = _product_rounding(base.shape[1]) * (own.sqrt().numpy() + longest) ** 2
        settled: list[np.ndarray] = []
        unsettled: list[Unsettled] = []
        for i in range(len(square)):
            column = _matches(sets, groups, start + i)
            before, rest = _place(square[i], sets, start + i, i, column, slack[i])
            settled.append(before)
            unsettled += [rest] if rest is not None else []
        for line, before in _settle(sets, query.float(), unsettled, row_order):
            settled[line] = before
        counts = np.array([len(each) for each in settled])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        before = np.concatenate(settled)
        place = np.arange(1, len(before) + 1) - np.repeat(offsets[:-1], counts)
        yield MatchRanks(start, before + place, offsets)


def _matches(sets: Sets, groups: Groups | None, number: int) -> np.ndarray:
    """int64: the columns of the items that query `number` is to find."""
    assert sets.same_label is not None
    column = np.arange(*sets.same_label[number])
    if groups is not None:
        column = column[groups[0][column] != groups[1][number]]
    return column[column != sets.self_column[number]]


def _place(
    square: np.ndarray, sets: Sets, number: int, line: int, column: np.ndarray, slack: float
) -> tuple[np.ndarray, Unsettled | None]:
    """Others in front of each match of one query, ascending, and what is open about it. square: (N,), spoilt. column:
    those of the matches."""
    assert sets.same_label is not None
    own = square[column]
    order = np.argsort(own, kind="stable")
    own, column = own[order], column[order]
    square[slice(*sets.same_label[number])] = np.inf  # from here on: the others
    relative = _listed_rounding(sets.base.shape[1])
    low, high = own - relative * np.abs(own) - slack, own + relative * np.abs(own) + slack
    near = np.flatnonzero(square <= (high[-1] if len(high) else -np.inf))
    value = square[near]
    by_value = np.argsort(value, kind="stable")
    value = value[by_value]
    before, upto = np.searchsorted(value, low, "left"), np.searchsorted(value, high, "right")
    matches = np.flatnonzero(upto > before)
    if not len(matches):
        return before, None
    first = np.maximum(before[matches], np.concatenate([[0], upto[matches][:-1]]))  # windows, without what they share
    length = np.maximum(upto[matches] - first, 0)
    place = np.repeat(first - np.concatenate([[0], np.cumsum(length)[:-1]]), length) + np.arange(length.sum())
    return before, Unsettled(line, before, matches, column[matches], place, near[by_value[place]])


def _settle(
    sets: Sets, query: torch.Tensor, unsettled: list[Unsettled], row_order: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Line and the others in front of each match, by the distances of the lists."""
    if not unsettled:
        return
    columns = [np.concatenate([each.match_column, each.other_column]) for each in unsettled]
    line = np.repeat([each.line for each in unsettled], [len(each) for each in columns])
    column = np.concatenate(columns)
    distance = listed_distances(query, torch.from_numpy(line), sets.base, torch.from_numpy(column)).numpy()
    key = (distance.view(np.int32).astype(np.int64) << 32) + row_order[column]  # distances are >= 0: bits are ordered
    done = 0
    for each, mine in zip(unsettled, columns):
        match_key, other_key = np.split(key[done : done + len(mine)], [len(each.match_column)])
        done += len(mine)
        before, sure = each.before.copy(), each.before[each.matches]
        in_question = np.searchsorted(each.other_place, sure)  # of those surely nearer, the ones compared again below
        before[each.matches] = sure - in_question + np.searchsorted(np.sort(other_key), match_key, "left")
        yield each.line, np.sort(before)


def _product_rounding(dim: int) -> float:
    """Bound of the error of a float64 squared distance by norms and a product, over (|a| + |b|)^2, twice over since two
    of them are compared (see `store.search`)."""
    return 4 * (dim + 32) * 2.0**-53


def _listed_rounding(dim: int) -> float:
    """Two squared distances that differ by more than this, relatively, have listed distances in the same order: three
    roundings of a square, one for each level of the tree of sums, two for the distance itself; for two distances."""
    return 2.2 * (math.ceil(math.log2(max(2, dim))) + 6) * 2.0**-24
