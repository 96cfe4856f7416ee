"""Matching the stereo pair: each spot of the left photograph with the nearest descriptor of the right one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardmine.mining.embed import embed_entries
from hardmine.store.patches import PatchStore
from hardmine.train.networks import Network


@dataclass(frozen=True)
class Matches:
    """left, right: float64 (n, 2), where each spot of the left photograph is, and where its match in the right one is.
    correct: bool (n,), whether the disparity map carries the spot to that match."""

    left: np.ndarray
    right: np.ndarray
    correct: np.ndarray

    def __str__(self) -> str:
        return f"{int(self.correct.sum())} of {len(self.correct)} matches right"


def match(store: PatchStore, network: Network) -> Matches:
    """Match the spots of a patch store that `ingest stereo` wrote (classes of two rows, left and right)."""
    rows = np.arange(len(store))
    descriptors = embed_entries(store, rows, None, network)
    image, frame = store.column("image"), store.column("frame")
    assert image is not None and frame is not None  # noqa: PT018 - the reader writes them
    left, right = rows[image == 0], rows[image == 1]
    nearest = right[nearest_rows(descriptors[left], descriptors[right])]
    place = frame[:, :2].astype(np.float64)
    return Matches(place[left], place[nearest], store.label[left] == store.label[nearest])


def nearest_rows(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """int64 (n,): the row of the gallery (m, D) that is nearest to each of the queries (n, D); the first of equals."""
    squared = (gallery**2).sum(axis=1) - 2 * queries @ gallery.T
    return squared.argmin(axis=1)
