"""The ranks of matches as far as a depth, for each query its own, in blocks of bounded memory.

As `ranking.match_ranks`, but only ranks up to `depth` are wanted, so most items need no look: a first pass over
each query's matches and a sample of the others bounds the distance of its depth-th neighbour, the second pass keeps
what is within that bound. Where the queries are the database, a distance is computed once for both of its ends.
Distances come from float32 products; items that their rounding cannot tell from a match are compared by the float32
number of `pair_distances`, then by row, as in neighbour lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hardmine.errors import InputError, UnknownNameError
from hardmine.store.distances import full_float32, listed_distances
from hardmine.store.ranking import TIES
from hardmine.store.search import prepare, rounding

STRIDE = 32  # one item in so many bounds the distances
BLOCK, TILE = 512, 1 << 12  # queries and items whose squared distances are held at once: 8 MB
MOST_PENDING = 1 << 25  # candidates and matches that may wait for their query's turn: 256 MB
COLUMN_BITS = 22
MOST_ITEMS = 1 << COLUMN_BITS
VALUE_BITS = 31  # of a float32 that is not negative
MOST_QUERIES = 1 << 10  # of a block: (query, value, column) are 63 bits


@dataclass(frozen=True)
class NearRanks:
    """A block of queries: query int64 (B,), their places among the queries; rank int64 (M,), from 1, ascending within a
    query, none beyond its depth; offsets int64 (B + 1,)."""

    query: np.ndarray
    rank: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Matches:
    """Matches of a block of queries that may be within their depth, sorted by (query, value): line int16 (M,) in the
    block, column int32, value float32, the squared distance. limit: float32 (B,), nothing beyond it is among a query's
    depth nearest, or nearer than its farthest match. expected: about how many items of other labels are within it."""

    line: np.ndarray
    column: np.ndarray
    value: np.ndarray
    limit: np.ndarray
    expected: int


def near_match_ranks(
    database: np.ndarray | torch.Tensor,
    rows: np.ndarray,
    labels: np.ndarray,
    depth: np.ndarray,
    *,
    queries: np.ndarray | torch.Tensor | None = None,
    query_rows: np.ndarray | None = None,
    query_labels: np.ndarray | None = None,
    ties: str = "row",
    block: int | None = None,
) -> Iterator[NearRanks]:
    """Ranks up to `depth` of each query's matches, in its ranking of `database` (N, D) without its own row.

    depth: int64 (Q,), 0 for queries to leave out. Other arguments and errors as `ranking.match_ranks`; InputError where
    the database has 4 million items or more. The blocks come in no promised order and name their queries.
    """
    if ties not in TIES:
        raise UnknownNameError("tie rule", ties, TIES)
    if len(rows) >= MOST_ITEMS:
        raise InputError(f"{len(rows)} items are too many for near ranks, which go up to {MOST_ITEMS - 1}")
    return _Near(database, rows, labels, depth, queries, query_rows, query_labels, ties, block).blocks()


class _Near:
    """The two sets in order of label, so that matches are neighbours, and one gone through block by block."""

    def __init__(
        self,
        database: np.ndarray | torch.Tensor,
        rows: np.ndarray,
        labels: np.ndarray,
        depth: np.ndarray,
        queries: np.ndarray | torch.Tensor | None,
        query_rows: np.ndarray | None,
        query_labels: np.ndarray | None,
        ties: str,
        block: int | None,
    ):
        sets = prepare(database, rows, queries, query_rows, labels, query_labels, "euclidean", None)
        assert sets.same_label is not None
        self.order = np.lexsort((sets.self_column, sets.same_label[:, 0]))  # of the database itself: its own order
        self.symmetric = queries is None
        self.base, self.query = sets.base, sets.base if self.symmetric else sets.query[self.order]
        self.range, self.own = sets.same_label[self.order], sets.self_column[self.order]
        # labels by the first column that has them: 0 and up, and -1 where the database has none
        ranges = self.range[self.range[:, 1] > self.range[:, 0]]
        self.base_label = np.full(len(sets.rows), -2, np.int32)
        for begin, end in np.unique(ranges, axis=0):
            self.base_label[begin:end] = begin
        self.label = np.where(self.range[:, 1] > self.range[:, 0], self.range[:, 0], -1).astype(np.int32)
        self.depth = depth[self.order]
        self.row_order = np.argsort(np.argsort(sets.rows)) if ties == "row" else np.zeros(len(sets.rows), np.int64)
        self.block = min(MOST_QUERIES, block or BLOCK)
        self.buffer = torch.empty(self.block * TILE)
        # [x, |x|^2, 1] . [-2 y, 1, |y|^2] is a squared distance
        norm = _square_norms(self.base)
        self.right = torch.cat([-2 * self.base, torch.ones_like(norm), norm], 1)
        self.sample = np.arange(0, len(sets.rows), STRIDE)
        self.right_sample = self.right[torch.from_numpy(self.sample)]
        length = self.query.norm(dim=1).numpy()
        longest = float(norm.max().sqrt()) if len(norm) else 0.0
        self.slack = (2 * rounding(self.base.shape[1] + 2) * (length + longest) ** 2).astype(np.float32)

    @torch.inference_mode()
    def blocks(self) -> Iterator[NearRanks]:
        parts = [slice(start, start + self.block) for start in range(0, len(self.query), self.block)]
        with full_float32():
            known = self._known(parts) if self.symmetric else None
            limit = None if known is None else np.concatenate([each.limit for each in known])
            pending: list[list[np.ndarray]] = [[] for _ in parts]
            for i, part in enumerate(parts):
                matches = self._matches(part) if known is None else known[i]
                keys, pending[i] = pending[i], []
                for start in range(0 if limit is None else part.start, len(self.base), TILE):
                    square = self._squares(part, self.right[start : start + TILE])
                    keys.append(self._keys(square, matches.limit, part, start))
                    if limit is not None:
                        self._other_end(square, limit, part, start, pending)
                yield self._ranked(np.sort(np.concatenate(keys)), matches, part)

    def _known(self, parts: list[slice]) -> list[Matches] | None:
        """The matches of all queries, or None where with the candidates to expect they would take too much room."""
        found, room = [], MOST_PENDING
        for part in parts:
            found.append(self._matches(part))
            room -= len(found[-1].line) + found[-1].expected
            if room < 0:
                return None
        return found

    def _squares(self, part: slice, right: torch.Tensor) -> np.ndarray:
        """Squared distances float32 (B, n) of a block of queries to some columns, valid until the next call."""
        query = self.query[part]
        left = torch.cat([query, _square_norms(query), torch.ones(len(query), 1)], 1)
        shape = len(left), len(right)
        room = self.buffer[: shape[0] * shape[1]] if shape[0] * shape[1] <= len(self.buffer) else torch.empty(shape)
        return torch.mm(left, right.T, out=room.view(shape)).numpy()

    def _matches(self, part: slice) -> Matches:
        ranges, own, depth = self.range[part], self.own[part], self.depth[part]
        first, last = int(ranges[:, 0].min()), int(ranges[:, 1].max())
        square = self._squares(part, self.right[first:last])
        is_match = self.base_label[first:last] == self.label[part, None]
        own_line = np.flatnonzero((own >= first) & (own < last))
        is_match[own_line, own[own_line] - first] = False
        line, place = np.nonzero(is_match)
        key = np.sort(_key(line, square[line, place], place))
        place, value = key & (MOST_ITEMS - 1), _value(key)
        count = np.bincount(line, minlength=len(own))
        offset = np.cumsum(count) - count
        sampled = self._squares(part, self.right_sample)
        sampled[self.base_label[self.sample] == self.label[part, None]] = np.inf
        matched = np.full((len(own), int(count.max(initial=0))), np.inf, np.float32)
        matched[line, np.arange(len(line)) - offset[line]] = value
        both = np.concatenate([matched, sampled], 1)
        kth = np.clip(depth, 1, both.shape[1]) - 1
        bound = np.partition(both, np.unique(kth), 1)[np.arange(len(own)), kth]
        bound[depth > both.shape[1]] = np.inf
        farthest = np.where(count > 0, value[np.minimum(offset + count - 1, len(value) - 1)], 0) if len(value) else 0
        limit = np.where((depth > 0) & (count > 0), np.minimum(bound, farthest) + self.slack[part], -1)
        limit = limit.astype(np.float32)
        reach = value <= limit[line]
        column = (first + place[reach]).astype(np.int32)
        expected = STRIDE * int(np.count_nonzero(sampled <= limit[:, None]))
        return Matches(line[reach].astype(np.int16), column, value[reach], limit, expected)

    def _keys(self, square: np.ndarray, limit: np.ndarray, part: slice, from_column: int) -> np.ndarray:
        """Keys of the items of other labels within each query's limit."""
        flat = np.flatnonzero(square <= limit[:, None])
        line, place = np.divmod(flat, square.shape[1])
        return self._packed(line, square.reshape(-1)[flat], place + from_column, self.label[part][line])[0]

    def _other_end(
        self, square: np.ndarray, limit: np.ndarray, part: slice, start: int, pending: list[list[np.ndarray]]
    ) -> None:
        """The same for the queries of later blocks, whose distances to this block are columns from `start` on."""
        skip = min(max(0, part.stop - start), square.shape[1])
        flat = np.flatnonzero(square[:, skip:] <= limit[start + skip : start + square.shape[1]])
        line, place = np.divmod(flat, max(1, square.shape[1] - skip))
        place += skip
        to = (place + start) // self.block
        order = np.argsort((to - to.min(initial=0)).astype(np.uint16), kind="stable")
        line, place, to = line[order], place[order], to[order]
        query = place + start
        keys, kept = self._packed(query % self.block, square[line, place], part.start + line, self.label[query])
        to = to[kept]
        for i in np.unique(to):
            pending[i].append(keys[slice(*np.searchsorted(to, (i, i + 1)))])

    def _packed(
        self, line: np.ndarray, value: np.ndarray, column: np.ndarray, label: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the items that have another label than the query, and which they are."""
        other = self.base_label[column] != label
        return _key(line[other], value[other], column[other]), other

    def _ranked(self, keys: np.ndarray, matches: Matches, part: slice) -> NearRanks:
        """Ranks of a block from the sorted keys of all items of other labels that are within its limits."""
        size = len(self.query[part])
        line, column, value = matches.line.astype(np.int64), matches.column.astype(np.int64), matches.value
        slack = self.slack[part][line]
        before = np.searchsorted(keys, _key(line, value - slack, 0))
        upto = np.searchsorted(keys, _key(line, value + slack, MOST_ITEMS - 1), "right")
        open_ = np.flatnonzero(upto > before)
        if len(open_):
            before[open_] = self._settled(keys, before[open_], upto[open_], line[open_], column[open_], part)
        start = np.searchsorted(keys, _key(np.arange(size), 0.0, 0))
        before = np.sort((line << 40) + before - start[line], kind="stable") - (line << 40)  # nearly sorted
        count = np.bincount(line, minlength=size)
        rank = before + np.arange(1, len(line) + 1) - (np.cumsum(count) - count)[line]
        inside = rank <= self.depth[part][line]
        count = np.bincount(line[inside], minlength=size)
        return NearRanks(self.order[part], rank[inside], np.concatenate([[0], np.cumsum(count)]).astype(np.int64))

    def _settled(
        self, keys: np.ndarray, before: np.ndarray, upto: np.ndarray, line: np.ndarray, column: np.ndarray, part: slice
    ) -> np.ndarray:
        """How many keys are in front of each match, those from `before` to `upto` compared by listed distance."""
        first = np.maximum(before, np.concatenate([[0], np.maximum.accumulate(upto)[:-1]]))  # without what they share
        length = np.maximum(upto - first, 0)
        place = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(length.sum())
        others = keys[place]
        all_lines = np.concatenate([line, others >> (VALUE_BITS + COLUMN_BITS)])
        all_columns = np.concatenate([column, others & (MOST_ITEMS - 1)])
        query, base = torch.from_numpy(all_lines), torch.from_numpy(all_columns)
        distance = listed_distances(self.query[part], query, self.base, base).numpy()
        match_key, other_key = np.split(_key(all_lines, distance, self.row_order[all_columns]), [len(line)])
        surely = before - np.searchsorted(place, before)
        return surely + np.searchsorted(np.sort(other_key), match_key)


def _key(line: np.ndarray, value: np.ndarray | float, column: np.ndarray | int) -> np.ndarray:
    """int64, sorted as (line, value, column) are. Values below 0, which rounding makes, are 0; floats sort as bits."""
    bits = np.maximum(np.asarray(value, np.float32), np.float32(0)).view(np.int32).astype(np.int64)
    return (line << (VALUE_BITS + COLUMN_BITS)) | (bits << COLUMN_BITS) | column


def _value(key: np.ndarray) -> np.ndarray:
    """float32: the values of keys."""
    return (key >> COLUMN_BITS & (1 << VALUE_BITS) - 1).astype(np.int32).view(np.float32)


def _square_norms(x: torch.Tensor) -> torch.Tensor:
    """float32 (n, 1), each rounded once."""
    return x.double().square().sum(1, keepdim=True).float()
