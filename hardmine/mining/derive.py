"""What follows from descriptors alone: pair distances, neighbour lists, centroids. No model, no patch store."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.store.approximate import approximate_both
from hardmine.store.distances import PAIRS_AT_ONCE, as_tensor, full_float32, listed_distances, pair_distances
from hardmine.store.index import build_index
from hardmine.store.lists import Neighbours
from hardmine.store.rounds import Round
from hardmine.store.search import nearest, nearest_both
from hardmine.store.sets import in_order

MOST_PAIRS = 1 << 32  # 16 GB of float32
PAIRS_PER_STEP = 1 << 20
MOST_IN_MEMORY = 1 << 28  # bytes of pair distances
LARGE_CLASS = 1024  # from here on one entry's pairs are a step of their own
INDEX_PAYS = 200_000  # items from which on an index finds lists faster than all compared with all, on a CPU

_ADVICE = (
    "{:,} items were compared with all. Where classes are small clusters, --knn-index IVFclasses,Flat finds most of "
    "the neighbours in less time"
)

Device = torch.device | str | None


def class_pair_distances(
    descriptors: np.ndarray, offsets: np.ndarray, device: Device = None, scratch: Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Distances between the entries of each class: float32 (P,), and int64 (C + 1,) offsets into them.

    descriptors: float32 (M, D) in class order, class c in `offsets[c]:offsets[c + 1]`. A class of k entries has
    k (k - 1) / 2 values in the order (0, 1), (0, 2), ..., (1, 2), ... scratch: a folder for a nameless file that holds
    the distances where they are many (a class of 50,000 has 5 GB of them); None keeps them in memory. Raises InputError
    beyond 2**32 pairs.
    """
    size = np.diff(offsets)
    pair_offsets = np.concatenate([[0], np.cumsum(size * (size - 1) // 2)]).astype(np.int64)
    if pair_offsets[-1] > MOST_PAIRS:
        raise InputError(
            f"{pair_offsets[-1]} pairs inside classes (the largest has {size.max()} entries) are too many to store: "
            "limit the class size when ingesting, or mine without 'pairs'"
        )
    x = as_tensor(descriptors, device)
    values = _room(int(pair_offsets[-1]), scratch)
    with torch.inference_mode(), full_float32():
        for k in np.unique(size[size > 1]).tolist():
            classes = np.flatnonzero(size == k)
            if k > LARGE_CLASS:
                for c in classes:
                    _large_class(x, int(offsets[c]), k, values[pair_offsets[c] : pair_offsets[c + 1]])
                continue
            first, second = np.triu_indices(k, 1)
            step = max(1, PAIRS_PER_STEP // len(first))
            for start in range(0, len(classes), step):
                some = classes[start : start + step]
                i, j = offsets[some][:, None] + first, offsets[some][:, None] + second
                place = pair_offsets[some][:, None] + np.arange(len(first))
                values[place.reshape(-1)] = _distances(x, i.reshape(-1), j.reshape(-1))
    return values, pair_offsets


def _room(count: int, scratch: Path | None) -> np.ndarray:
    """float32 (count,), in memory or, where it is large and there is a folder for it, in a file without a name, whose
    room on the disk is taken now: a full disk is an OSError here and not a fault in the middle."""
    if scratch is None or 4 * count <= MOST_IN_MEMORY:
        return np.empty(count, np.float32)
    with tempfile.TemporaryFile(dir=scratch) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 4 * count)
        return np.memmap(file, np.float32, "r+" if hasattr(os, "posix_fallocate") else "w+", shape=(count,))


def _large_class(x: torch.Tensor, start: int, k: int, out: np.ndarray) -> None:
    done = 0
    for i in range(k - 1):
        for first in range(i + 1, k, PAIRS_AT_ONCE):
            others = x[start + first : start + min(first + PAIRS_AT_ONCE, k)]
            out[done : done + len(others)] = pair_distances(x[start + i], others).cpu().numpy()
            done += len(others)


def _distances(x: torch.Tensor, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    i, j = (torch.from_numpy(np.asarray(each, np.int64)).to(x.device) for each in (first, second))
    return listed_distances(x, i, x, j).cpu().numpy()


def class_centroids(descriptors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Mean descriptor of each class, float32 (C, D), summed in float64 and not normalised; NaN for empty classes."""
    size = np.diff(offsets)
    filled = np.flatnonzero(size)
    centroids = np.full((len(size), descriptors.shape[1]), np.nan, np.float32)
    sums = np.add.reduceat(descriptors, offsets[filled], axis=0, dtype=np.float64)
    centroids[filled] = sums / size[filled, None]
    return centroids


def nearest_classes(centroids: np.ndarray, k: int, device: Device = None) -> tuple[np.ndarray, np.ndarray]:
    """The k classes with the nearest centroids: int64 (C, k), -1 padded, and float32 (C, k) distances, NaN padded.
    Empty classes have no neighbours and are nobody's."""
    filled = np.flatnonzero(np.isfinite(centroids).all(1))
    found = nearest(centroids[filled], filled, k, device=device)
    classes = np.full((len(centroids), k), -1, np.int64)
    distance = np.full((len(centroids), k), np.nan, np.float32)
    classes[filled], distance[filled] = found.rows, found.distance
    return classes, distance


def neighbour_lists(
    source: Round, k: int, device: Device = None, knn_index: str | None = None
) -> tuple[Neighbours, Neighbours, dict[str, Any], list[str]]:
    """The k nearest items of each item of a round, of any label and of other labels (see `Round.knn`), how they were
    found and what is to be said of it. knn_index: 'IVFclasses,Flat' or a faiss factory string (see `approximate_both`);
    None or 'Flat' compares all with all, None with a word of advice where that took long."""
    items = source.items
    sets = in_order(source.descriptors(), items), source.entry_row[items], source.entry_label[items]
    if knn_index in (None, "Flat"):
        slow = knn_index is None and len(items) > INDEX_PAYS and torch.device(device or "cpu").type == "cpu"
        return *nearest_both(*sets, k, device=device), {}, [_ADVICE.format(len(items))] if slow else []
    everything, others, record, messages = approximate_both(*sets, k, str(knn_index), device=device)
    return everything, others, {"knn_asked": knn_index, **record}, messages


def derive(
    source: Round,
    what: str,
    *,
    neighbours: int = 16,
    index: str = "Flat",
    knn_index: str | None = None,
    device: Device = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any], list[str]]:
    """One derivation of a round: its arrays by name, its record for the attributes, and what is to be said of it.

    what: 'pairs', 'knn', 'centroids' or 'index'. knn_index: see `neighbour_lists`."""
    if what == "pairs":
        distance, offsets = class_pair_distances(source.descriptors(), source.entry_offsets, device, source.folder)
        return {"pair_distance": distance, "pair_offsets": offsets}, {"pairs": len(distance)}, []
    if what == "centroids":
        centroids = class_centroids(source.descriptors(), source.entry_offsets)
        classes, distance = nearest_classes(centroids, neighbours, device)
        arrays = {"class_centroid": centroids, "nearest_class": classes, "nearest_class_distance": distance}
        return arrays, {"neighbours": neighbours}, []
    if what == "knn":
        everything, others, found, messages = neighbour_lists(source, neighbours, device, knn_index)
        arrays = {
            "knn": everything.rows,
            "knn_distance": everything.distance,
            "knn_other": others.rows,
            "knn_other_distance": others.distance,
        }
        record: dict[str, Any] = {"neighbours": neighbours, **found}
        for name, lists in (("", everything), ("_other", others)):
            record |= {f"ties_cut{name}": lists.ties_cut, f"short{name}": lists.short}
            if lists.short:
                messages.append(
                    f"{lists.short} of {len(lists.rows)} lists knn{name} have fewer than {neighbours} items"
                )
        return arrays, record, messages
    items = source.items
    built, content = build_index(
        source.descriptors()[items], source.entry_row[items], index, metric=source.key["metric"], neighbours=neighbours
    )
    return {} if content is None else {"index": content}, asdict(built), built.messages
