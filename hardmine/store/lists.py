"""Neighbour lists: what a search gives back, and what it fills while it goes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SPARE = 16  # candidates beyond K whose distances are recomputed


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


class Lists:
    """Lists under construction. rows, distance: as in Neighbours; tied: bool (Q,), a tie is cut at K."""

    def __init__(self, count: int, k: int):
        self.k = k
        self.rows = np.full((count, k), -1, np.int64)
        self.distance = np.full((count, k), np.nan, np.float32)
        self.tied = np.zeros(count, bool)

    def take(self, queries: np.ndarray, rows: np.ndarray, distance: np.ndarray) -> None:
        """The sorted lists of some queries. rows, distance: (B, at most k + 1); the one beyond k tells of a tie."""
        width = min(self.k, rows.shape[1])
        self.rows[queries, :width], self.distance[queries, :width] = rows[:, :width], distance[:, :width]
        if rows.shape[1] > self.k:
            self.tied[queries] = distance[:, self.k - 1] == distance[:, self.k]

    def done(self) -> Neighbours:
        """The lists as they stand."""
        return Neighbours(self.rows, self.distance, int(self.tied.sum()), int((self.rows[:, -1] < 0).sum()))


def sorted_lists(rows: np.ndarray, distance: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """The `keep` nearest of each line by (distance, row); an infinite distance becomes row -1 and NaN."""
    order = np.lexsort((rows, distance), axis=-1)[:, :keep]
    rows, distance = np.take_along_axis(rows, order, 1), np.take_along_axis(distance, order, 1)
    masked = np.isinf(distance)
    return np.where(masked, -1, rows), np.where(masked, np.float32(np.nan), distance)
