"""Matching the stereo pair: each spot of the left photograph with the nearest descriptor of the right one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardmine.mining.embed import embed_entries
from hardmine.store.patches import PatchStore
from hardmine.store.search import nearest
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
    found = nearest(descriptors[right], right, 1, queries=descriptors[left]).rows[:, 0]
    place = frame[:, :2].astype(np.float64)
    return Matches(place[left], place[found], store.label[left] == store.label[found])
