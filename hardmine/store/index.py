"""The index of a round: the one place that talks to faiss.

An index is a rebuildable cache. 'Flat' (exact) is only recorded: the descriptors are its content, and torch searches
them. Any other factory string is built by faiss on the CPU, so that it can always be saved, and measured against the
exact search.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch  # before faiss: whichever comes first brings the OpenMP that both use

from hardmine.errors import InputError, StoreError
from hardmine.store.class_cells import CLASSES
from hardmine.store.distances import as_descriptors, as_tensor, listed_distances
from hardmine.store.lists import SPARE, Neighbours
from hardmine.store.search import nearest
from hardmine.store.sets import check_metric

POINTS_PER_CENTROID = 39  # what faiss asks for before it warns of a poor clustering
MOST_POINTS_PER_CENTROID = 256  # more do not help; faiss would drop them
SAMPLE = 1000  # queries of the recall measurement
LEAST = {"IVF": (1, "lists"), "HNSW": (2, "links of an item"), "NSG": (8, "links of an item")}


@dataclass(frozen=True)
class IndexRecord:
    """What a round says of its index. asked: the factory string of the user; factory: the one in use ('Flat' where the
    training points did not suffice for the other); recall: share of the exact K nearest found at the default search
    parameters, over a sample of `sampled` queries."""

    asked: str
    factory: str
    metric: str
    ntotal: int
    training_rows: int
    neighbours: int
    recall: float
    sampled: int
    seed: int
    messages: list[str] = field(default_factory=list)


def build_index(
    descriptors: np.ndarray,
    rows: np.ndarray,
    factory: str = "Flat",
    *,
    metric: str = "euclidean",
    seed: int = 0,
    neighbours: int = 16,
) -> tuple[IndexRecord, np.ndarray | None]:
    """Build an index over descriptors (N, D) of `rows` (N,): its record and its serialised bytes (uint8, None if Flat).

    factory: a faiss factory string ('Flat', 'IVF256,Flat', 'HNSW32', 'IVF256,PQ16', ...). Where N is less than 39
    points per inverted list, or than the 2**bits centroids of a product quantizer, the exact index is used and the
    record says so. Raises InputError where the string is no factory or faiss is not installed, NumericalError on rows
    not finite.
    """
    check_metric(metric)
    if factory == CLASSES:
        raise InputError(
            f"index {factory!r} only finds neighbour lists (knn_index): an index to keep has cells of its own, "
            "e.g. 'IVF256,Flat'"
        )
    x = as_descriptors(descriptors, rows)
    needed, reason = points_needed(factory)
    if factory == "Flat" or len(x) < needed:
        messages = [] if factory == "Flat" else [f"index {factory}: {len(x)} items, but {reason}; using Flat (exact)"]
        return IndexRecord(factory, "Flat", metric, len(x), 0, neighbours, 1.0, 0, seed, messages), None
    index, training_rows = faiss_index(x, factory, seed)
    opened = Index(factory, metric, x, np.asarray(rows, np.int64), index)
    recall, sampled = _recall(opened, neighbours, seed)
    record = IndexRecord(factory, factory, metric, len(x), training_rows, neighbours, recall, sampled, seed)
    return record, load_faiss(factory).serialize_index(index)


def faiss_index(x: np.ndarray, factory: str, seed: int) -> tuple[Any, int]:
    """A faiss index on the CPU over checked descriptors float32 (N, D), N at least `points_needed`, and the number of
    points it was trained with. The same on every run. Raises InputError as `build_index` does."""
    faiss = load_faiss(factory)
    _check_numbers(factory)
    try:
        index = faiss.index_factory(x.shape[1], factory, faiss.METRIC_L2)
    except RuntimeError as error:
        raise InputError(
            f"index {factory!r} is no faiss factory string for {x.shape[1]} dimensions: {error}"
        ) from error
    training = _training_points(x, points_needed(factory)[0], seed) if not index.is_trained else x[:0]
    _set_seed(faiss, index, seed)
    threads = faiss.omp_get_max_threads()
    try:
        if re.search(r"HNSW|NSG", factory):  # a graph built by several threads is another graph each time
            faiss.omp_set_num_threads(1)
        if len(training):
            index.train(training)
        index.add(x)
    except RuntimeError as error:
        raise InputError(f"index {factory!r} cannot be built of {len(x)} descriptors: {error}") from error
    finally:
        faiss.omp_set_num_threads(threads)
    return index, len(training)


class Index:
    """An opened index. factory, metric, rows int64 (N,); `search` gives lists of those rows."""

    def __init__(self, factory: str, metric: str, descriptors: np.ndarray, rows: np.ndarray, index: Any | None):
        self.factory, self.metric, self.descriptors, self.rows = factory, metric, descriptors, rows
        self._index = index

    def search(
        self, queries: np.ndarray, k: int, *, query_rows: np.ndarray | None = None, metric: str = "euclidean"
    ) -> Neighbours:
        """The k nearest found for queries (Q, D), as `search.nearest` returns them (distances exact, recomputed pair by
        pair); lists that the index leaves unfilled end in -1 and are counted as short. query_rows: rows to leave out.

        Raises InputError where `metric` is not the one the index was built with."""
        if metric != self.metric:
            raise InputError(
                f"the index was built for the {self.metric} metric, not for {metric!r}; mine again for that"
            )
        if self._index is None:
            return nearest(self.descriptors, self.rows, k, queries=queries, query_rows=query_rows)
        q = as_descriptors(queries, query_rows)
        if q.shape[1] != self.descriptors.shape[1]:
            raise InputError(f"queries have {q.shape[1]} dimensions, the index has {self.descriptors.shape[1]}")
        place = self._index.search(q, min(k + SPARE, len(self.rows)))[1]
        found = np.where(place >= 0, self.rows[place], -1)  # faiss says -1 where it found nothing
        if query_rows is not None:
            found = np.where(found == np.asarray(query_rows)[:, None], -1, found)
        line = torch.arange(len(q)).repeat_interleave(place.shape[1])
        base, column = as_tensor(self.descriptors), torch.from_numpy(place.reshape(-1).clip(0))
        distance = listed_distances(as_tensor(q), line, base, column)
        distance_of = np.where(found >= 0, distance.numpy().reshape(place.shape), np.inf)
        order = np.lexsort((found, distance_of), axis=-1)
        near, far = np.take_along_axis(found, order, 1), np.take_along_axis(distance_of, order, 1)
        ties = int((np.isfinite(far[:, k]) & (far[:, k - 1] == far[:, k])).sum()) if far.shape[1] > k else 0
        rows = np.full((len(q), k), -1, np.int64)
        rows[:, : near.shape[1]] = near[:, :k]
        distances = np.full((len(q), k), np.nan, np.float32)
        distances[:, : far.shape[1]] = np.where(near >= 0, far, np.nan)[:, :k]
        return Neighbours(rows, distances, ties, int((rows[:, -1] < 0).sum()))


def open_index(
    record: dict[str, Any], content: np.ndarray | None, descriptors: np.ndarray, rows: np.ndarray, metric: str
) -> Index:
    """Open what `build_index` returned, over the same descriptors and rows.

    Raises StoreError where record, bytes and descriptors do not fit together or the metric is another."""
    if record["metric"] != metric:
        raise StoreError(f"the index was built for the {record['metric']} metric, the descriptors are for {metric}")
    if record["factory"] == "Flat":
        return Index("Flat", metric, descriptors, rows, None)
    if content is None:
        raise StoreError(f"the bytes of the index {record['factory']} are missing: derive the index again")
    index = load_faiss(record["factory"]).deserialize_index(np.array(content, np.uint8))
    if index.ntotal != len(rows) or index.d != descriptors.shape[1]:
        raise StoreError(
            f"the index holds {index.ntotal} items of {index.d} dimensions, the round has {len(rows)} of "
            f"{descriptors.shape[1]}: derive the index again"
        )
    return Index(record["factory"], metric, descriptors, rows, index)


def load_faiss(factory: str) -> ModuleType:
    """The module faiss. Raises InputError with what to install where it is not there."""
    try:
        import faiss
    except ImportError as error:
        raise InputError(
            f"index {factory!r} needs faiss, which is not installed: pip install 'hardmine[cpu]' (or 'hardmine[gpu]'). "
            "The index 'Flat' (exact) works without it."
        ) from error
    return faiss


def _check_numbers(factory: str) -> None:
    """Raises InputError for numbers in a factory string that faiss takes, and then ends the process with."""
    for kind, number in re.findall(r"(IVF|HNSW|NSG)(\d+)", factory):
        least, what = LEAST[kind]
        if int(number) < least:
            raise InputError(f"index {factory!r}: {kind}{number} is too few; give {least} or more {what}")
    if re.search(r"PQ\d+x0", factory):
        raise InputError(f"index {factory!r}: a product quantizer needs 1 bit or more")


def points_needed(factory: str) -> tuple[int, str]:
    """Items that a factory string needs for its training, and why."""
    needed, reason = 1, "it needs one"
    lists = re.search(r"IVF(\d+)", factory)
    if lists:
        count = int(lists[1])
        needed, reason = POINTS_PER_CENTROID * count, f"{count} lists need {POINTS_PER_CENTROID} each"
    quantizer = re.search(r"PQ\d+(?:x(\d+))?", factory)
    if quantizer and (codes := 2 ** int(quantizer[1] or 8)) > needed:
        needed, reason = codes, f"its product quantizer needs {codes}"
    return needed, reason


def _training_points(x: np.ndarray, needed: int, seed: int) -> np.ndarray:
    most = max(MOST_POINTS_PER_CENTROID * max(needed // POINTS_PER_CENTROID, 256), needed)
    if len(x) <= most:
        return x
    chosen = np.random.Generator(np.random.Philox(seed)).choice(len(x), most, replace=False)
    return x[np.sort(chosen)]


def _set_seed(faiss: ModuleType, index: Any, seed: int) -> None:
    seed = seed % 2**31
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        inverted.cp.seed = seed
    for part in (index, inverted):
        quantizer = getattr(faiss.downcast_index(part), "pq", None) if part is not None else None
        if quantizer is not None:
            quantizer.cp.seed = seed


def _recall(index: Index, k: int, seed: int) -> tuple[float, int]:
    """Share of the exact k nearest that the index finds, over a seeded sample of its own items, self left out."""
    count = min(SAMPLE, len(index.rows))
    sample = np.sort(np.random.Generator(np.random.Philox(seed)).choice(len(index.rows), count, replace=False))
    rows, queries = index.rows[sample], index.descriptors[sample]
    exact = nearest(index.descriptors, index.rows, k, queries=queries, query_rows=rows).rows
    found = index.search(queries, k, query_rows=rows).rows
    hits = (exact[:, :, None] == found[:, None, :]) & (exact[:, :, None] >= 0)
    return float(hits.any(2).sum() / max(1, (exact >= 0).sum())), count
