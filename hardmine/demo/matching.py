"""Matching the stereo pair: mutual nearest neighbours of described keypoints, judged by the disparity map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardmine.pipeline.readers.stereo import at, carry, visible
from hardmine.protocols.describe import describe_image
from hardmine.train.networks import Network

TOLERANCE = 3.0  # pixels from where the disparity map puts the point


@dataclass(frozen=True)
class Matches:
    """left, right: float64 (n, 2), the matched points of the two photographs. correct: bool (n,)."""

    left: np.ndarray
    right: np.ndarray
    correct: np.ndarray

    def __str__(self) -> str:
        return f"{int(self.correct.sum())} of {len(self.correct)} right"


def match_pair(network: Network, left: np.ndarray, right: np.ndarray, disparity: np.ndarray, points: int) -> Matches:
    """Match the keypoints of two grey photographs uint8 (H, W), at most `points` of each.

    disparity: float32 (H, W) of the left one, NaN where unknown. Left keypoints whose disparity is unknown, or which
    the right photograph does not show, cannot be judged and are left out.
    """
    left_frames, left_descriptors = describe_image(network, left, points)
    right_frames, right_descriptors = describe_image(network, right, points)
    shown = np.isfinite(at(visible(disparity), left_frames[:, :2]))
    left_frames, left_descriptors = left_frames[shown], left_descriptors[shown]
    i, j = mutual_nearest(left_descriptors, right_descriptors)
    expected, found = carry(disparity, left_frames[i])[:, :2], right_frames[j, :2]
    correct = np.hypot(*(expected - found).T) <= TOLERANCE
    return Matches(left_frames[i, :2], found, correct)


def mutual_nearest(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows (i, j), int64, of unit descriptors (n, D) and (m, D) that are each other's nearest; ascending in i."""
    if not len(first) or not len(second):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    similarity = first @ second.T
    nearest = similarity.argmax(axis=1)
    i = np.flatnonzero(similarity.argmax(axis=0)[nearest] == np.arange(len(first)))
    return i, nearest[i]
