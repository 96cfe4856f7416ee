"""Neighbour lists through an approximate index, for sets where comparing all with all takes too long.

The index proposes candidates; their distances are recomputed pair by pair and sorted as the exact search does, so a
listed distance is exact and only a neighbour can be missing. The share that is found is measured on a sample against
the exact search, and the search is widened until it reaches the target, or so much is searched that comparing all with
all would be no slower.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.store.class_cells import CLASSES, ClassCells, unfit
from hardmine.store.distances import as_descriptors, as_tensor, listed_distances
from hardmine.store.index import SAMPLE, faiss_index, load_faiss, points_needed
from hardmine.store.lists import SPARE, Lists, Neighbours, sorted_lists
from hardmine.store.search import nearest, nearest_both

TARGET = 0.95  # recall at which the search is wide enough
MOST_PROBED = 4  # at most a 4th of the inverted lists is searched: a scan of them is slower than a matrix product
MOST_CANDIDATES = 8  # times those of an index that knows exact distances, for one that compresses its items
COMPRESSED = r"PQ|SQ|LSH|RaBitQ"
MOST_OF_A_CLASS = 256  # candidates fetched on top, for those with the query's own label
BLOCK = 4096  # queries at once
MOST_ON_GPU = 2048  # candidates of a query, and lists it looks at, that faiss takes on a GPU


def approximate_both(
    database: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray,
    k: int,
    factory: str,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> tuple[Neighbours, Neighbours, dict[str, Any], list[str]]:
    """As `nearest_both` of a database with itself, through the index `factory`, and a record of what was found.

    database: (N, D); rows, labels: int64 (N,). factory: 'IVFclasses,Flat', whose cells are the classes, or a faiss
    factory string. A list that the candidates do not fill is completed by the exact search, so -1 stands only where
    there are fewer than k neighbours. device: CUDA searches exactly there, and an inverted file as well where faiss is
    built for GPUs; the CPU by default. record: `knn_index` (in use: 'Flat' where the items do not suffice for the
    other), `recall` and `recall_other` over `sampled` queries, `search` (what was settled: nprobe, efSearch,
    candidates, cells), `completed` (lists), `seed`. Raises InputError as `build_index` does.
    """
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
    x, rows, labels = as_descriptors(database, rows), np.asarray(rows, np.int64), np.asarray(labels, np.int64)
    reason = _unfit(factory, labels)
    if factory == "Flat" or reason is not None:
        messages = [] if factory == "Flat" else [f"knn index {factory}: {len(x)} items, but {reason}; searched exactly"]
        everything, others = nearest_both(x, rows, labels, k, device=device)
        return everything, others, {"knn_index": "Flat"}, messages
    search: ClassCells | _FaissCandidates
    if factory == CLASSES:
        search = ClassCells(x, rows, labels, k)
    else:
        search = _FaissCandidates(factory, x, rows, labels, k, seed, torch.device(device or "cpu"))
    sample = np.sort(np.random.Generator(np.random.Philox(seed)).choice(len(x), min(SAMPLE, len(x)), replace=False))
    sampled: dict[str, Any] = {"queries": x[sample], "query_rows": rows[sample], "query_labels": labels[sample]}
    exact = nearest_both(x, rows, labels, k, **sampled, device=device)
    search.settle(sample, exact)
    lists = Lists(len(x), k), Lists(len(x), k)
    for items in search.blocks():
        for each, found in zip(lists, search.listed(items)):
            each.take(items, *found)
    recall = [_recall(each.rows[sample], true.rows) for each, true in zip(lists, exact)]
    completed = _complete(lists[0], x, rows, None) + _complete(lists[1], x, rows, labels)
    record = {"knn_index": factory, "recall": recall[0], "recall_other": recall[1], "sampled": len(sample)}
    record |= {"search": search.record(), "completed": completed, "seed": seed}
    messages = [f"knn index {factory}: recall {min(recall):.3f} on {len(sample)} queries, {record['search']}"]
    if min(recall) < TARGET:
        messages.append(f"that is less than {TARGET}: {search.advice}; without --knn-index the lists are exact")
    return lists[0].done(), lists[1].done(), record, messages


def _unfit(factory: str, labels: np.ndarray) -> str | None:
    """Why the items do not suffice for an index, None where they do."""
    if factory == CLASSES:
        return unfit(labels)
    needed, reason = points_needed(factory)
    return reason if len(labels) < needed else None


class _FaissCandidates:
    """Candidates of a faiss index for items of its own, with exact distances."""

    advice = (
        "these descriptors have no cells that hold neighbours together. An index with fewer, larger lists finds more"
    )

    def __init__(
        self,
        factory: str,
        x: np.ndarray,
        rows: np.ndarray,
        labels: np.ndarray,
        k: int,
        seed: int,
        device: torch.device,
    ):
        self._faiss, self.index, self._device = load_faiss(factory), faiss_index(x, factory, seed)[0], device
        self.x, self.base, self.rows, self.labels, self.k = x, as_tensor(x), rows, labels, k
        largest = int(np.unique(labels, return_counts=True)[1].max())
        self.ask = min(len(x), k + SPARE + min(largest, MOST_OF_A_CLASS))
        compressed = re.search(COMPRESSED, factory) is not None
        self._most = min(len(x), MOST_CANDIDATES * self.ask) if compressed else self.ask
        self._width = _Width(factory, self.index, self.ask)
        resources = getattr(self._faiss, "StandardGpuResources", None)  # of a faiss that is built for GPUs
        self._resources = None if resources is None or device.type != "cuda" else resources()
        self._searched: Any = None  # the index, or its copy on the GPU, as wide as it is now

    def settle(self, sample: np.ndarray, exact: tuple[Neighbours, Neighbours]) -> None:
        """Widen the search until it finds enough of the sample's (B,) true neighbours, in both lists."""
        while True:
            found = self.listed(sample)
            if min(_recall(rows[:, : self.k], true.rows) for (rows, _), true in zip(found, exact)) >= TARGET:
                return
            if not (self._width.widen() or self._more()):
                return
            self._searched = None

    def blocks(self) -> list[np.ndarray]:
        """All items, in blocks of bounded memory."""
        count = len(self.x)
        return [np.arange(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]

    def listed(self, items: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """For items (B,): rows and distances (B, k + 1) of any label, and of other labels; -1 and NaN padded."""
        if self._searched is None:
            self._searched = self._on_device()
        place = self._searched.search(self.x[items], self.ask)[1]
        line, column = np.nonzero((place >= 0) & (place != items[:, None]))  # faiss says -1 where it found nothing
        found = torch.from_numpy(place[line, column])
        distance = np.full(place.shape, np.inf, np.float32)
        distance[line, column] = listed_distances(self.base, torch.from_numpy(items[line]), self.base, found).numpy()
        rows, keep = self.rows[place], min(self.k + 1, place.shape[1])
        both = [sorted_lists(rows, distance, keep)]
        distance[self.labels[place] == self.labels[items][:, None]] = np.inf
        return [*both, sorted_lists(rows, distance, keep)]

    def _on_device(self) -> Any:
        """A copy of an inverted file on the GPU where that is asked for and can be; else the index itself."""
        lists = self._width.lists
        if self._resources is None or lists is None or max(self.ask, lists) > MOST_ON_GPU:
            return self.index
        return self._faiss.index_cpu_to_gpu(self._resources, self._device.index or 0, self.index)

    def record(self) -> dict[str, int]:
        """What a round says of the search."""
        return {**self._width.record(), "candidates": self.ask}

    def _more(self) -> bool:
        """Twice the candidates, of an index that knows distances only roughly; False where it has enough of them."""
        if 2 * self.ask > self._most:
            return False
        self.ask *= 2
        return True


class _Width:
    """How widely an index searches: nprobe of inverted lists, efSearch of a graph, or nothing to set."""

    def __init__(self, factory: str, index: Any, ask: int):
        faiss = load_faiss(factory)
        self._inverted, inner = faiss.try_extract_index_ivf(index), faiss.downcast_index(index)
        self._graph = getattr(inner, "hnsw", None) if self._inverted is None else None
        if self._graph is not None:
            self._graph.efSearch = max(self._graph.efSearch, ask)

    @property
    def lists(self) -> int | None:
        """Inverted lists that a query looks at; None where there are none."""
        return None if self._inverted is None else int(self._inverted.nprobe)

    def widen(self) -> bool:
        """Twice as wide; False where that is not possible, or no longer faster than the exact search."""
        if self._inverted is not None and 2 * self._inverted.nprobe <= max(2, self._inverted.nlist // MOST_PROBED):
            self._inverted.nprobe *= 2
            return True
        if self._graph is not None and self._graph.efSearch < 1 << 12:
            self._graph.efSearch *= 2
            return True
        return False

    def record(self) -> dict[str, int]:
        if self.lists is not None:
            return {"nprobe": self.lists}
        return {} if self._graph is None else {"efSearch": int(self._graph.efSearch)}


def _recall(found: np.ndarray, true: np.ndarray) -> float:
    """Share of the exact lists' rows (B, k) that the found ones (B, k) have."""
    hits = sum(((line[:, None] == own) & (line[:, None] >= 0)).any(1).sum() for line, own in zip(true, found))
    return float(hits / max(1, (true >= 0).sum()))


def _complete(lists: Lists, x: np.ndarray, rows: np.ndarray, labels: np.ndarray | None) -> int:
    """Search exactly for the lists that are short; returns their number."""
    short = np.flatnonzero(lists.rows[:, -1] < 0)
    if len(short):
        own = None if labels is None else labels[short]
        exact = nearest(x, rows, lists.k, queries=x[short], query_rows=rows[short], labels=labels, query_labels=own)
        lists.take(short, exact.rows, exact.distance)
    return len(short)
