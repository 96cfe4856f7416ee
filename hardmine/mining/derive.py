"""What follows from descriptors alone: pair distances, neighbour lists, centroids. No model, no patch store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.store.distances import as_tensor, full_float32, listed_distances
from hardmine.store.index import build_index
from hardmine.store.rounds import Round
from hardmine.store.search import Neighbours, nearest, nearest_both

MOST_PAIRS = 1 << 32  # 16 GB of float32
PAIRS_PER_STEP = 1 << 20
LARGE_CLASS = 1024  # from here on one entry's pairs are a step of their own

Device = torch.device | str | None


def class_pair_distances(
    descriptors: np.ndarray, offsets: np.ndarray, device: Device = None
) -> tuple[np.ndarray, np.ndarray]:
    """Distances between the entries of each class: float32 (P,), and int64 (C + 1,) offsets into them.

    descriptors: float32 (M, D) in class order, class c in `offsets[c]:offsets[c + 1]`. A class of k entries has
    k (k - 1) / 2 values in the order (0, 1), (0, 2), ..., (1, 2), ... Raises InputError beyond 2**32 pairs.
    """
    size = np.diff(offsets)
    pair_offsets = np.concatenate([[0], np.cumsum(size * (size - 1) // 2)]).astype(np.int64)
    if pair_offsets[-1] > MOST_PAIRS:
        raise InputError(
            f"{pair_offsets[-1]} pairs inside classes (the largest has {size.max()} entries) are too many to store: "
            "limit the class size when ingesting, or mine without 'pairs'"
        )
    x = as_tensor(descriptors, device)
    values = np.empty(pair_offsets[-1], np.float32)
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


def _large_class(x: torch.Tensor, start: int, k: int, out: np.ndarray) -> None:
    done = 0
    for i in range(k - 1):
        others = np.arange(start + i + 1, start + k)
        out[done : done + len(others)] = _distances(x, np.full(len(others), start + i), others)
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


def neighbour_lists(source: Round, k: int, device: Device = None) -> tuple[Neighbours, Neighbours]:
    """The k nearest items of each item of a round, of any label and of other labels (see `Round.knn`)."""
    items = source.items
    return nearest_both(
        source.descriptors()[items], source.entry_row[items], source.entry_label[items], k, device=device
    )


def derive(
    source: Round, what: str, *, neighbours: int = 16, index: str = "Flat", device: Device = None
) -> tuple[dict[str, np.ndarray], dict[str, Any], list[str]]:
    """One derivation of a round: its arrays by name, its record for the attributes, and what is to be said of it.

    what: 'pairs', 'knn', 'centroids' or 'index'."""
    if what == "pairs":
        distance, offsets = class_pair_distances(source.descriptors(), source.entry_offsets, device)
        return {"pair_distance": distance, "pair_offsets": offsets}, {"pairs": len(distance)}, []
    if what == "centroids":
        centroids = class_centroids(source.descriptors(), source.entry_offsets)
        classes, distance = nearest_classes(centroids, neighbours, device)
        arrays = {"class_centroid": centroids, "nearest_class": classes, "nearest_class_distance": distance}
        return arrays, {"neighbours": neighbours}, []
    if what == "knn":
        everything, others = neighbour_lists(source, neighbours, device)
        arrays = {
            "knn": everything.rows,
            "knn_distance": everything.distance,
            "knn_other": others.rows,
            "knn_other_distance": others.distance,
        }
        record = {"neighbours": neighbours}
        messages = []
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
