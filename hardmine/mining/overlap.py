"""Classes that overlap in the same photograph: they show nearly the same spot and are no negatives of each other."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from hardmine.store.patches import PatchStore


class Overlap:
    """Which pairs of classes have patches in one photograph closer than `factor` times the smaller keypoint size.

    Looked up by the classes of a batch; empty where the store has no positions (`known` is False then).
    """

    def __init__(self, store: PatchStore, rows: np.ndarray, factor: float):
        image, frame = store.column("image"), store.column("frame")
        self.known = image is not None and frame is not None
        pairs = [np.zeros((0, 2), np.int64)]
        if factor > 0 and image is not None and frame is not None:
            order = rows[np.argsort(image[rows], kind="stable")]
            for group in np.split(order, np.flatnonzero(np.diff(image[order])) + 1):
                pairs.append(store.label[group][_close(np.asarray(frame[group], np.float64), factor)])
        found = np.unique(np.concatenate(pairs), axis=0)
        found = found[found[:, 0] != found[:, 1]]
        both = np.concatenate([found, found[:, ::-1]])
        ones = np.ones(len(both), bool)
        self._graph = csr_array((ones, (both[:, 0], both[:, 1])), shape=(store.num_classes, store.num_classes))

    @property
    def pairs(self) -> int:
        """Number of unordered pairs of overlapping classes."""
        return self._graph.nnz // 2

    def class_pairs(self) -> np.ndarray:
        """int64 (P, 2): the overlapping classes, first < second, ascending."""
        first, second = self._graph.nonzero()
        found = np.stack([first, second], 1).astype(np.int64)[first < second]
        return found[np.lexsort((found[:, 1], found[:, 0]))]

    def among(self, classes: np.ndarray) -> np.ndarray:
        """bool (n, n): True where classes[i] and classes[j] overlap."""
        return self._graph[classes][:, classes].toarray()

    def between(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """bool, shaped as both: True where first[i] and second[i], classes, overlap; False where one is -1."""
        shape, there = np.broadcast_shapes(first.shape, second.shape), (first >= 0) & (second >= 0)
        if not self.pairs:
            return np.zeros(shape, bool)
        a, b = np.where(there, first, 0).reshape(-1), np.where(there, second, 0).reshape(-1)
        return np.asarray(self._graph[a, b]).reshape(shape) & there


def _close(frame: np.ndarray, factor: float) -> np.ndarray:
    """Pairs (P, 2) of frames of one photograph whose centres are closer than factor x the smaller of their sizes."""
    if len(frame) < 2:
        return np.zeros((0, 2), np.int64)
    tree = cKDTree(frame[:, :2])
    near = tree.query_ball_point(frame[:, :2], factor * frame[:, 2])  # the smaller radius decides below
    first = np.repeat(np.arange(len(frame)), [len(n) for n in near])
    second = np.concatenate([np.asarray(n, np.int64) for n in near])
    gap = np.linalg.norm(frame[first, :2] - frame[second, :2], axis=1)
    keep = (first < second) & (gap < factor * np.minimum(frame[first, 2], frame[second, 2]))
    return np.stack([first[keep], second[keep]], 1)
