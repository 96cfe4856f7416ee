"""Neighbour lists of a set whose classes are clusters: the classes are the cells of the inverted file.

A k-means of many small cells costs more than the search it is for; the classes of a set are cells that are known. Those
of a round have a few items each, so comparing all cells with all costs a hundredth of comparing all items with all.
Each cell's items are then compared with the items of the cells whose centroids are nearest to its own, and with those
of their own class. Own code, since faiss scans an inverted list for each query alone: ten items of a class through a
thousand lists of ten are one matrix product here, and several thousand scans there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch

from hardmine.store.by_rows import BLOCK_VALUES, mask_ranges, room, smallest
from hardmine.store.distances import as_tensor, listed_distances
from hardmine.store.lists import SPARE, Neighbours, sorted_lists
from hardmine.store.sets import in_order

CLASSES = "IVFclasses,Flat"
LARGEST_CELL = 64  # items; a larger class is several cells
MOST_COMPARED = 4  # at most a 4th of the cells is compared: more is no faster than comparing all items with all
AIM = 0.96  # of the sample's true neighbours in the cells compared, so that 0.95 of all are (a sample of 1,000)
GATHERED = 1 << 10  # items gathered at once: 512 kB of 128-d descriptors stay in the cache


def unfit(labels: np.ndarray) -> str | None:
    """Why the classes of labels (N,) cannot be cells that make the search faster; None where they can."""
    size = np.unique(labels, return_counts=True)[1].astype(float)
    if len(labels) < max(1, 2 * len(size)):
        return f"{len(size)} classes have fewer than two items each on average"
    inside = (size**2).sum() / len(labels) ** 2
    if inside > 1 / MOST_COMPARED:
        return f"{inside:.0%} of all pairs are inside classes, where all are compared"
    return None


class ClassCells:
    """Candidates for items of a set, from the cells that are its classes, with exact distances.

    x: float32 (N, D); rows, labels: int64 (N,). compared: number of cells, nearest first, whose items each item is
    compared with, besides all items of its own class; `settle` sets it.
    """

    advice = (
        "these classes are no cells that hold neighbours together (labels that say little, or a network that is not "
        "trained). IVF256,Flat and its like make cells of their own"
    )

    def __init__(self, x: np.ndarray, rows: np.ndarray, labels: np.ndarray, k: int):
        order = np.lexsort((rows, labels))
        self.k, self.order, self.rows = k, order, rows[order]
        self.place = np.empty_like(order)  # of each item in `order`
        self.place[order] = np.arange(len(order))
        self.base = as_tensor(in_order(x, order))
        self.norm = torch.linalg.vector_norm(self.base, dim=1) ** 2
        label, first, size = np.unique(labels[order], return_index=True, return_counts=True)
        cells = -(-size // LARGEST_CELL)
        self.class_of = np.repeat(np.arange(len(label)), cells)
        self.class_range = np.stack([first, first + size], 1)
        self.class_cells = np.stack([np.cumsum(cells) - cells, np.cumsum(cells)], 1)
        within = np.arange(len(self.class_of)) - self.class_cells[self.class_of, 0]
        self.first = first[self.class_of] + LARGEST_CELL * within
        self.size = np.minimum(LARGEST_CELL, self.class_range[self.class_of, 1] - self.first)
        self.cell_of = np.repeat(np.arange(len(self.first)), self.size)  # of each place
        sums = torch.segment_reduce(self.base, "sum", lengths=torch.from_numpy(self.size), axis=0)
        self.centroid = sums / torch.from_numpy(self.size)[:, None]
        self.centroid_norm = torch.linalg.vector_norm(self.centroid, dim=1) ** 2
        self.most = max(1, len(self.first) // MOST_COMPARED)
        self.compared = min(self.most, -(-(k + SPARE) * len(self.first) // len(rows)))
        self._cells_at_once = max(1, min(1024, BLOCK_VALUES // len(self.first)))
        self._scores = torch.empty(self._cells_at_once, len(self.first))

    def settle(self, sample: np.ndarray, exact: tuple[Neighbours, Neighbours]) -> None:
        """Compare as few cells as hold AIM of the true neighbours of the sample's items (B,), in both lists."""
        cell = self.cell_of[self.place[sample]]
        by_row = np.argsort(self.rows)
        for lists in exact:
            found = by_row[np.searchsorted(self.rows[by_row], lists.rows.clip(self.rows.min()))]  # -1 is left out below
            near = self.cell_of[found]
            ranks = np.empty(near.shape, np.int64)
            step = -(-self._cells_at_once // 8)  # sorting takes three times the room of what is sorted
            for start in range(0, len(sample), step):
                part = slice(start, start + step)
                score = self._score(cell[part])
                ordered = score.sort(1).values
                ranks[part] = torch.searchsorted(ordered, score.gather(1, torch.from_numpy(near[part]))).numpy() + 1
            ranks[self.class_of[near] == self.class_of[cell][:, None]] = 0  # compared in any case
            ranks = np.sort(ranks[lists.rows >= 0])
            if len(ranks):
                self.compared = max(self.compared, int(ranks[math.ceil(AIM * len(ranks)) - 1]))
        self.compared = min(self.compared, self.most)

    def blocks(self) -> list[np.ndarray]:
        """All items, in blocks that `listed` does well."""
        starts = np.append(self.first[:: self._cells_at_once], len(self.order))
        return [self.order[start:stop] for start, stop in pairwise(starts)]

    def listed(self, items: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """For items (B,): rows and distances (B, at most k + 1) of any label, and of other labels; -1 and NaN
        padded."""
        place = self.place[items]
        cell = self.cell_of[place]
        near = np.full((len(items), 2 * (self.k + SPARE)), -1, np.int64)
        line = np.argsort(cell, kind="stable")
        cells, start = np.unique(cell[line], return_index=True)
        lines = np.split(line, start[1:])

        def compare(cell: int, lines: np.ndarray, score: torch.Tensor) -> None:
            with torch.inference_mode():
                near[lines, : self.k + SPARE] = self._others(place[lines], score)
                near[lines, self.k + SPARE :] = self._own(cell, place[lines])

        with threads_of_one() as pool:
            for done in range(0, len(cells), self._cells_at_once):
                part = slice(done, done + self._cells_at_once)
                list(pool.map(compare, cells[part], lines[part], self._score(cells[part])))
        return self._sorted(place, near)

    def record(self) -> dict[str, int]:
        """What a round says of the search."""
        return {"nprobe": self.compared, "cells": len(self.first), "largest_cell": int(self.size.max())}

    def _score(self, cells: np.ndarray) -> torch.Tensor:
        """Squared distances of the centroids of cells (B,) to those of all, less the own norm: (B, C), infinity for
        cells of the own class. Overwritten by the next call."""
        score = self._scores[: len(cells)]
        torch.addmm(self.centroid_norm, self.centroid[cells], self.centroid.T, alpha=-2, out=score)
        mask_ranges(score, self.class_cells[self.class_of[cells]])
        return score

    def _own(self, cell: int, place: np.ndarray) -> np.ndarray:
        """Candidates (B, k + SPARE) of items at one cell from their own class, -1 padded."""
        first, last = self.class_range[self.class_of[cell]]
        values = torch.addmm(self.norm[first:last], self.base[place], self.base[first:last].T, alpha=-2)
        values[torch.arange(len(place)), torch.from_numpy(place - first)] = torch.inf
        value, column = smallest(values, self.k + SPARE)
        return _padded(np.where(torch.isfinite(value).numpy(), column.numpy() + first, -1), self.k + SPARE)

    def _others(self, place: np.ndarray, score: torch.Tensor) -> np.ndarray:
        """Candidates (B, k + SPARE) of items at one cell, by its scores (C,), from cells of other classes. At most 64 N
        / 4 values are held for that."""
        value, cells = score.topk(self.compared, largest=False, sorted=False)
        chosen = cells[torch.isfinite(value)].numpy()
        size = self.size[chosen]
        ends = np.cumsum(size)
        members = torch.from_numpy(np.arange(size.sum()) + np.repeat(self.first[chosen] - ends + size, size))
        query, values = self.base[place], room(len(place), len(members))
        for start in range(0, len(members), GATHERED):
            some = members[start : start + GATHERED]
            out = values[:, start : start + len(some)]
            gathered = self.base.index_select(0, some)  # twice as fast as by [some]
            torch.addmm(self.norm.index_select(0, some), query, gathered.T, alpha=-2, out=out)
        column = smallest(values, self.k + SPARE, len(members))[1]
        return _padded(members[column].numpy(), self.k + SPARE)

    def _sorted(self, place: np.ndarray, near: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Lists of items at `place` (B,) from candidates (B, 2 (k + SPARE)), those of other labels first."""
        width = self.k + SPARE
        near = near[:, : width + max(1, int((near[:, width:] >= 0).sum(1).max()))]
        line, column = np.nonzero(near >= 0)
        distance = np.full(near.shape, np.inf, np.float32)
        first, second = torch.from_numpy(place[line]), torch.from_numpy(near[line, column])
        distance[line, column] = listed_distances(self.base, first, self.base, second).numpy()
        rows, keep = self.rows[near], self.k + 1
        return [sorted_lists(rows, distance, keep), sorted_lists(rows[:, :width], distance[:, :width], keep)]


@contextmanager
def threads_of_one() -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch uses for one operation, each doing its operations alone: many small ones take a third of
    the time that way on a busy machine, since no thread waits for another at the end of each."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)  # what a thread sets becomes the default of threads to come


def _padded(places: np.ndarray, width: int) -> np.ndarray:
    return np.pad(places, ((0, 0), (0, width - places.shape[1])), constant_values=-1)
