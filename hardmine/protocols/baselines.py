"""What a learned descriptor is measured against: normalised pixels, and OpenCV's SIFT on the same upright patches."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from hardmine.errors import UnknownNameError
from hardmine.protocols.base import Describe
from hardmine.store.patches import PatchStore

REACH = 6.0  # a patch is this many keypoint sizes wide, as our readers cut them


def pixels(patches: np.ndarray) -> np.ndarray:
    """16 x 16 pixels, zero mean and unit norm: uint8 (n, H, W) to float32 (n, 256)."""
    small = np.stack([cv2.resize(p, (16, 16), interpolation=cv2.INTER_AREA).ravel() for p in patches])
    centred = small.astype(np.float32) - small.mean(1, keepdims=True, dtype=np.float32)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)


def sift(patches: np.ndarray) -> np.ndarray:
    """OpenCV's SIFT of an upright keypoint in the patch's middle: uint8 (n, H, W) to float32 (n, 128), unit norm."""
    extractor, side = cv2.SIFT.create(), patches.shape[1]
    key = cv2.KeyPoint((side - 1) / 2, (side - 1) / 2, side / REACH, 0.0)
    raw = np.stack([extractor.compute(p, [key])[1][0] for p in patches])
    return raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12)


def root_sift(patches: np.ndarray) -> np.ndarray:
    """RootSIFT (Arandjelovic and Zisserman 2012): the square root of the L1-normalised SIFT, float32 (n, 128)."""
    raw = sift(patches)
    return np.sqrt(raw / np.maximum(raw.sum(1, keepdims=True), 1e-12))


BASELINES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"pixels": pixels, "sift": sift, "rootsift": root_sift}


def baseline(store: PatchStore, name: str) -> Describe:
    """The baseline called `name` over the rows of a store. Raises UnknownNameError."""
    if name not in BASELINES:
        raise UnknownNameError("baseline", name, BASELINES)
    return lambda rows: BASELINES[name](store.gather(rows))
