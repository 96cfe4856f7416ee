"""The ranks of matches as far as a depth, for each query its own, in blocks of bounded memory.

As `ranking.match_ranks`, but only ranks up to `depth` are wanted, so most items need no look: a first pass over
each query's matches and a sample of the others guesses a limit that its depth-th neighbour is most likely within, the
second pass keeps what is within that limit, and counts it. A query for which it is too little after all comes again
with a limit that is certain, so the guess costs time where it is wrong, and changes nothing. Where the queries are the
database, a distance is computed once for both of its ends. Distances come from float32 products; items that their
rounding cannot tell from a match are compared by the float32 number of `pair_distances`, then by row, as in neighbour
lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hardmine.errors import InputError, UnknownNameError
from hardmine.store.distances import listed_distances
from hardmine.store.ordered import OrderedMap, in_order_on
from hardmine.store.ranking import TIES
from hardmine.store.sets import prepare
from hardmine.store.within import MOST_ITEMS, STRIDE, Within, column_of, key, line_of, value_of

MOST_PENDING = 1 << 25  # candidates and matches that may wait for their query's turn: 256 MB


@dataclass(frozen=True)
class NearRanks:
    """A block of queries: query int64 (B,), their places among the queries; rank int64 (M,), from 1, ascending within a
    query, none beyond its depth; offsets int64 (B + 1,)."""

    query: np.ndarray
    rank: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Matches:
    """Matches of a block of queries that are within their limit, sorted by (query, value): line int16 (M,) in the
    block, column int32, value float32, the squared distance. limit: float32 (B,), items nearer than such a match are
    within it. cut: float32 (B,), matches that are not here are so far that they come after all items within it; inf
    where every match is here. expected: about how many items of other labels are within the limits."""

    line: np.ndarray
    column: np.ndarray
    value: np.ndarray
    limit: np.ndarray
    cut: np.ndarray
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
        base_label = np.full(len(sets.rows), -2, np.int32)
        for begin, end in np.unique(ranges, axis=0):
            base_label[begin:end] = begin
        label = np.where(self.range[:, 1] > self.range[:, 0], self.range[:, 0], -1).astype(np.int32)
        self.within = Within(
            self.base.numpy(), base_label, None if self.symmetric else self.query.numpy(), label, block
        )
        self.depth = depth[self.order]
        self.row_order = np.argsort(np.argsort(sets.rows)) if ties == "row" else np.zeros(len(sets.rows), np.int64)

    def blocks(self) -> Iterator[NearRanks]:
        """The ranks of all queries, on as many threads as torch has."""
        parts, block = self.within.parts, self.within.block
        again = [np.zeros(0, np.int64)]
        with in_order_on(torch.get_num_threads()) as every:
            known = self._known(parts, every) if self.symmetric else None
            for part, matches, keys in (
                every(self._alone, parts) if known is None else self._together(parts, known, every)
            ):
                ranks, short = self._ranked(keys, matches, part)
                again.append(part[short])
                yield ranks
            left = np.concatenate(again)
            rest = np.split(left, range(block, len(left), block)) if len(left) else []
            for part, matches, keys in every(partial(self._alone, surely=True), rest):
                yield self._ranked(keys, matches, part, surely=True)[0]

    def _alone(self, part: np.ndarray, surely: bool = False) -> tuple[np.ndarray, Matches, list[np.ndarray]]:
        """A block with its matches and the keys of the items of other labels within its limits."""
        matches = self._matches(part, self.within.certain if surely else self.within.likely)
        return part, matches, self.within.alone(part, matches.limit)

    def _together(
        self, parts: list[np.ndarray], known: list[Matches], every: OrderedMap
    ) -> Iterator[tuple[np.ndarray, Matches, list[np.ndarray]]]:
        """The same for each block of the database, in order; what two blocks have in common is looked at once."""
        yield from zip(parts, known, self.within.together([each.limit for each in known], every))

    def _known(self, parts: list[np.ndarray], every: OrderedMap) -> list[Matches] | None:
        """The matches of all queries, or None where with the candidates to expect they would take too much room."""
        found, room = [], MOST_PENDING
        for matches in every(partial(self._matches, items=self.within.likely), parts):
            found.append(matches)
            room -= len(matches.line) + matches.expected
            if room < 0:
                return None
        return found

    def _matches(self, part: np.ndarray, items: np.ndarray) -> Matches:
        """items: (sampled items,), how many items are within the distance of the nearest of them, the second, ..."""
        within, depth, slack = self.within, self.depth[part], self.within.slack[part]
        left = within.left(part)
        keys = np.concatenate([np.zeros(0, np.int64), *self._match_keys(part, left)])
        keys.sort(kind="stable")  # they are in order of line already
        line, column, value = line_of(keys), column_of(keys), value_of(keys)
        count = np.bincount(line, minlength=len(part))
        offset = np.cumsum(count) - count
        sampled = within.sampled(left)
        sampled[within.base_label[within.sample] == within.label[part, None]] = np.inf
        most = min(int(np.searchsorted(items, depth.max(initial=1))) + 1, sampled.shape[1])
        near = np.sort(np.partition(sampled, most - 1, 1)[:, :most], 1).clip(min=0)
        below = np.searchsorted(keys, key(np.arange(len(part))[:, None], near, MOST_ITEMS - 1), "right")
        enough = below - offset[:, None] + items[:most] >= depth[:, None]
        cut = np.where(enough.any(1), near[np.arange(len(part)), enough.argmax(1)], np.float32(np.inf))
        farthest = np.where(count > 0, value[np.minimum(offset + count - 1, len(value) - 1)], 0) if len(value) else 0
        cut = np.where(farthest <= cut + slack, np.float32(np.inf), cut)
        limit = np.where(np.isinf(cut), farthest + slack, cut + 2 * slack)
        limit = np.where((depth > 0) & (count > 0), limit, -1).astype(np.float32)
        reach = (value <= cut[line] + slack[line]) & (limit[line] >= 0)
        expected = STRIDE * int(np.count_nonzero(sampled <= limit[:, None]))
        short = line[reach].astype(np.int16), column[reach].astype(np.int32), value[reach]
        return Matches(*short, limit, cut, expected)

    def _match_keys(self, part: np.ndarray, left: np.ndarray) -> Iterator[np.ndarray]:
        ranges, own = self.range[part], self.own[part]
        for first in range(int(ranges[:, 0].min()), int(ranges[:, 1].max()), self.within.block):
            last = min(first + self.within.block, int(ranges[:, 1].max()))
            square = self.within.squares(left, slice(first, last))
            is_match = self.within.base_label[first:last] == self.within.label[part, None]
            line = np.flatnonzero((own >= first) & (own < last))
            is_match[line, own[line] - first] = False
            line, place = np.divmod(np.flatnonzero(is_match), last - first)
            yield key(line, square[line, place], place + first)

    def _ranked(
        self, all_keys: list[np.ndarray], matches: Matches, part: np.ndarray, surely: bool = False
    ) -> tuple[NearRanks, np.ndarray]:
        """Ranks of a block from the keys of all items of other labels that are within its limits; and the places in the
        block of queries that are not among them, since for them the limit was too near. surely: no limit was; it is
        not counted again, since the product with another block rounds otherwise than that with the sample."""
        keys = np.sort(np.concatenate(all_keys))
        line, column, value = matches.line.astype(np.int64), matches.column.astype(np.int64), matches.value
        depth, slack, every = self.depth[part], self.within.slack[part][line], np.arange(len(part))
        before = np.searchsorted(keys, key(line, value - slack, 0))
        upto = np.searchsorted(keys, key(line, value + slack, MOST_ITEMS - 1), "right")
        open_ = np.flatnonzero(upto > before)
        if len(open_):
            before[open_] = self._settled(keys, before[open_], upto[open_], line[open_], column[open_], part)
        start = np.searchsorted(keys, key(every, 0.0, 0))
        before = np.sort((line << 40) + before - start[line], kind="stable") - (line << 40)  # nearly sorted
        count = np.bincount(line, minlength=len(part))
        in_front = np.searchsorted(keys, key(every, matches.cut, MOST_ITEMS - 1), "right") - start + count
        good = (
            surely | np.isinf(matches.cut) | (in_front >= depth)
        )  # the matches that are not here have ranks beyond the depth
        rank = before + np.arange(1, len(line) + 1) - (np.cumsum(count) - count)[line]
        inside = (rank <= depth[line]) & good[line]
        count = np.bincount(line[inside], minlength=len(part))[good]
        offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
        return NearRanks(self.order[part[good]], rank[inside], offsets), np.flatnonzero(~good)

    def _settled(
        self,
        keys: np.ndarray,
        before: np.ndarray,
        upto: np.ndarray,
        line: np.ndarray,
        column: np.ndarray,
        part: np.ndarray,
    ) -> np.ndarray:
        """How many keys are in front of each match, those from `before` to `upto` compared by listed distance."""
        first = np.maximum(before, np.concatenate([[0], np.maximum.accumulate(upto)[:-1]]))  # without what they share
        length = np.maximum(upto - first, 0)
        place = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(length.sum())
        others = keys[place]
        all_lines = np.concatenate([line, line_of(others)])
        all_columns = np.concatenate([column, column_of(others)])
        query, base = torch.from_numpy(all_lines), torch.from_numpy(all_columns)
        distance = listed_distances(self.query, torch.from_numpy(part)[query], self.base, base).numpy()
        match_key, other_key = np.split(key(all_lines, distance, self.row_order[all_columns]), [len(line)])
        surely = before - np.searchsorted(place, before)
        return surely + np.searchsorted(np.sort(other_key), match_key)
