"""Where the matches of a query stand in its ranking: what recall and average precision are counted from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardmine.errors import InputError


@dataclass(frozen=True)
class Ranks:
    """Places of the matches of Q queries, nearest first, the query itself not in its ranking.

    rank: int64 (M,), from 1, ascending within a query. offsets: int64 (Q + 1,): query q has
    `rank[offsets[q]:offsets[q + 1]]`. depth: int64 (Q,), only matches among so many nearest of a
    query are listed, those beyond are missing; None: every match is listed.
    """

    rank: np.ndarray
    offsets: np.ndarray
    depth: np.ndarray | None = None

    def __post_init__(self) -> None:
        if len(self.offsets) < 2:
            raise InputError("there is no query to count for: every query without a match was left out, or none given")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def listed(self) -> np.ndarray:
        """int64 (Q,): matches listed of each query."""
        return np.diff(self.offsets)

    @property
    def query(self) -> np.ndarray:
        """int64 (M,): the query that each rank belongs to."""
        return np.repeat(np.arange(len(self)), self.listed)

    @property
    def first(self) -> np.ndarray:
        """int64 (Q,): rank of the nearest match; depth + 1 where none is listed."""
        out = np.zeros(len(self), np.int64) if self.depth is None else self.depth + 1
        some = np.flatnonzero(self.listed)
        out[some] = self.rank[self.offsets[some]]
        return out

    def within(self, k: int) -> np.ndarray:
        """int64 (Q,): matches among the k nearest. Raises InputError where k is not in 1..depth."""
        if k < 1 or (self.depth is not None and k > self.depth.min()):
            lists = "" if self.depth is None else f", these have {self.depth.min()}"
            raise InputError(f"counting at {k} needs neighbour lists of that length{lists}")
        return np.bincount(self.query, self.rank <= k, len(self)).astype(np.int64)

    def check_relevant(self, relevant: np.ndarray) -> None:
        """Raises InputError unless relevant (Q,), matches of each query in the whole database, is 1 or more and not
        below what is listed."""
        if relevant.shape != (len(self),) or (relevant < 1).any():
            raise InputError("relevant counts the matches of each query, 1 or more: leave out queries without a match")
        if (relevant < self.listed).any():
            q = int(np.flatnonzero(relevant < self.listed)[0])
            raise InputError(f"query {q} has {self.listed[q]} matches in its list, {relevant[q]} in the database")


def ranks_of_lists(found: np.ndarray, labels: np.ndarray) -> Ranks:
    """The ranks of the matches in neighbour lists.

    found: int (Q, K), the labels of each query's neighbours, nearest first, itself not among them, -1 where there is
    none. labels: int (Q,), of the queries, 0 or more. Raises InputError on other shapes, and where there is no query.
    """
    if found.ndim != 2 or labels.shape != (len(found),):
        raise InputError(f"neighbours have shape {found.shape} for {labels.shape} queries; expected (Q, K) and (Q,)")
    hit = (found == labels[:, None]) & (found >= 0)
    offsets = np.concatenate([[0], np.cumsum(hit.sum(1))]).astype(np.int64)
    return Ranks(np.nonzero(hit)[1].astype(np.int64) + 1, offsets, np.full(len(found), found.shape[1]))
