"""The items of a round as candidates for negatives: which of them may be one for which anchor."""

from __future__ import annotations

import numpy as np

from hardmine.errors import InputError
from hardmine.mining.overlap import Overlap
from hardmine.store.rounds import Round


class Candidates:
    """The N items of a round. A line is an item's number 0..N-1, in the order of `Round.items`.

    items: int64 (N,), their entries. rows, labels: int64 (N,). x: float32 (N, D). size: int64 (C,), items of a class.
    """

    def __init__(self, source: Round, near_duplicate: float, overlap: Overlap | None, exclude: np.ndarray | None):
        self.source, self.near_duplicate, self.overlap = source, near_duplicate, overlap
        self.items = source.items
        self.rows, self.labels = source.entry_row[self.items], source.entry_label[self.items]
        self.x = source.descriptors()[self.items]
        self.size = np.bincount(self.labels, minlength=len(source.entry_offsets) - 1)
        self.excluded = np.isin(self.rows, [] if exclude is None else exclude)
        self._by_row = np.argsort(self.rows, kind="stable")

    def lines(self, rows: np.ndarray, what: str) -> np.ndarray:
        """int64 (n,): the lines of patch store rows. Raises InputError for a row that is not in the round."""
        rows = np.asarray(rows, np.int64)
        place = np.minimum(np.searchsorted(self.rows, rows, sorter=self._by_row), len(self.rows) - 1)
        lines = self._by_row[place]
        missing = self.rows[lines] != rows
        if missing.any():
            raise InputError(
                f"{int(missing.sum())} of the {what} are not in round {self.source.number} (row {rows[missing][0]}), "
                f"which holds split {self.source.split!r}: give rows of that split"
            )
        return lines

    def others(self, lines: np.ndarray) -> np.ndarray:
        """int64 (n,): how many items are of other classes."""
        return len(self.rows) - self.size[self.labels[lines]]

    def left_out(self, lines: np.ndarray, other: np.ndarray, distance: np.ndarray) -> dict[str, np.ndarray]:
        """Why candidates of other classes are no negatives: reason to bool (n, m), each candidate under one at most.

        lines: (n,). other: int64 (n, m) lines, -1 for none. distance: (n, m)."""
        there = other >= 0
        place = np.where(there, other, 0)
        near = there & (distance < self.near_duplicate)
        overlapping = np.zeros(other.shape, bool)
        if self.overlap is not None:
            theirs = np.where(there, self.labels[place], -1)
            overlapping = ~near & self.overlap.between(self.labels[lines][:, None], theirs)
        excluded = there & ~near & ~overlapping & self.excluded[place]
        return {"near duplicates": near, "overlapping classes": overlapping, "excluded": excluded}


def uniforms(seed: int, step: int, row: int, count: int) -> np.ndarray:
    """float64 (count,) in [0, 1): the random numbers of one anchor, a function of (seed, step, row) alone."""
    return np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, 0, row])).random(count)


def first_of_each_class(labels: np.ndarray) -> np.ndarray:
    """int64, ascending: the positions at which a label occurs for the first time. labels: (m,)."""
    return np.sort(np.unique(labels, return_index=True)[1])
