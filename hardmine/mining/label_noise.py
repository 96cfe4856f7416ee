"""Scores of single items and of pairs of classes, from neighbour lists: wrong labels, outliers, classes that mix."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array

from hardmine.store.distances import as_tensor, listed_distances
from hardmine.store.search import nearest

ASKED = 4  # neighbours that vote on a label
CLOSEST = 3  # items of its own class, and of others, that an item is compared with
LARGE_CLASS = 512  # from here on a class is searched, not compared pair by pair


def label_noise(
    lists: np.ndarray, distance: np.ndarray, labels: np.ndarray, outlier: np.ndarray, asked: int = ASKED
) -> tuple[np.ndarray, np.ndarray]:
    """How likely each item's label is wrong: float64 (N,) in 0..1, and the items by descending score.

    lists: int64 (N, K), each item's nearest items of any label as numbers 0..N-1, nearest first, -1 for none; distance:
    float32 (N, K); labels: int64 (N,); outlier: float64 (N,), see `outlier_scores`. The score is the weighted share of
    an item's `asked` nearest neighbours that have another label. No more than m - 1 are asked in a class of m items,
    since no more of them can have its label; neighbour j has the weight exp(-(d_j / d_last)^2), d_last being the
    distance of the last one asked. Items of equal score go by their outlier score, then by number. An item alone in its
    class has no score (NaN) and comes last.
    """
    size = np.bincount(labels)[labels]
    count = np.minimum(np.minimum(size - 1, asked), (lists >= 0).sum(1))
    use = np.arange(lists.shape[1])[None, :] < count[:, None]
    d = np.where(use, distance, 0).astype(np.float64)
    last = d.max(axis=1, keepdims=True)
    weight = np.where(use, np.exp(-((d / np.where(last > 0, last, 1)) ** 2)), 0)
    agrees = use & (labels[np.where(lists >= 0, lists, 0)] == labels[:, None])
    total = weight.sum(1)
    score = np.where(count > 0, 1 - (weight * agrees).sum(1) / np.where(total > 0, total, 1), np.nan)
    order = np.lexsort((np.arange(len(labels)), _last(-outlier), _last(-score)))
    return score, order


def outlier_scores(
    descriptors: np.ndarray, labels: np.ndarray, other_distance: np.ndarray, closest: int = CLOSEST
) -> np.ndarray:
    """How far each item is from its own class, against the others: float64 (N,) in -1..1, NaN for an item alone in its
    class and where there are no others.

    (own - other) / max(own, other), with own the mean distance to the `closest` nearest items of its class and other
    that to as many nearest items of other classes: the silhouette (Rousseeuw 1987) with its sign turned, among nearest
    items, so that a class may have several clusters. descriptors: float32 (N, D). labels: int64 (N,). other_distance:
    float32 (N, K), distances of the nearest items of other labels, nearest first, NaN for none.
    """
    own = np.full((len(labels), closest), np.nan)
    order = np.argsort(labels, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        if len(members) > 1:
            found = _within_class(descriptors[members], closest)
            own[members, : found.shape[1]] = found
    mean_own, mean_other = _mean_of(own), _mean_of(other_distance[:, :closest].astype(np.float64))
    larger = np.maximum(mean_own, mean_other)
    return np.where(larger > 0, (mean_own - mean_other) / np.where(larger > 0, larger, 1), larger)


def _within_class(x: np.ndarray, closest: int) -> np.ndarray:
    """Distances of each of m items to its nearest others: (m, min(closest, m - 1)), ascending."""
    count = len(x)
    keep = min(closest, count - 1)
    if count > LARGE_CLASS:
        return nearest(x, np.arange(count), keep).distance
    y, number = as_tensor(x), np.arange(count)
    first, second = as_tensor(np.repeat(number, count)), as_tensor(np.tile(number, count))
    gap = listed_distances(y, first, y, second).numpy().reshape(count, count).copy()
    np.fill_diagonal(gap, np.inf)
    return np.sort(np.partition(gap, keep - 1, axis=1)[:, :keep], axis=1)


def _mean_of(values: np.ndarray) -> np.ndarray:
    """Mean of what is not NaN in each line, NaN where nothing is."""
    there = ~np.isnan(values)
    count = there.sum(1)
    return np.where(count > 0, np.where(there, values, 0).sum(1) / np.maximum(count, 1), np.nan)


def _last(key: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(key), np.inf, key)


def mixed_classes(lists: np.ndarray, labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of classes that mix in the neighbour lists: int64 (S, 2), first < second, most mixed first; float64 (S,).

    A class's share in another is the part of its items' list places, the first m - 1 in a class of m, that items of the
    other hold. A pair's share is the smaller of the two ways, and is at least `share`. Classes of one item have none.
    """
    size = np.bincount(labels)
    asked = np.minimum(size[labels] - 1, (lists >= 0).sum(1))
    use = (np.arange(lists.shape[1])[None, :] < asked[:, None]) & (lists >= 0)
    a = np.broadcast_to(labels[:, None], lists.shape)[use]
    b = labels[lists[use]]
    count = coo_array((np.ones(len(a)), (a, b)), shape=(len(size), len(size))).tocsr()
    places = np.bincount(labels, weights=asked, minlength=len(size))
    part = count.multiply(1 / np.where(places > 0, places, 1)[:, None]).tocsr()
    both = part.minimum(part.T).tocoo()
    keep = (both.row < both.col) & (both.data >= share) & (both.data > 0)
    first, second, value = both.row[keep], both.col[keep], both.data[keep]
    order = np.lexsort((second, first, -value))
    return np.stack([first, second], 1)[order].astype(np.int64), value[order]
