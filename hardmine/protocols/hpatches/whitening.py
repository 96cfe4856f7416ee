"""PCA and power law: the normalisation that the HPatches benchmark offers, fitted on a split's training sequences."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hardmine.errors import InputError

CLAMPED = 0.6  # share of the eigenvalues that are raised to the one after them


def fit(strips: Iterable[np.ndarray]) -> np.ndarray:
    """The whitening matrix W, float64 (D, D), of the descriptors (N, D) of the training sequences' reference strips.

    W = V diag(1 / sqrt(max(d, c))) V', where V and d are the eigenvectors and ascending eigenvalues of the descriptors'
    covariance, and c = d[int(0.6 D)]. Source: hpatches/hpatches-benchmark, python/utils/hpatch.py. Strips are read one
    at a time. Raises InputError where there is none or the descriptors do not vary.
    """
    total, moment, count = np.zeros(0), np.zeros((0, 0)), 0
    for strip in strips:
        values = strip.astype(np.float64)
        if not count:
            total, moment = np.zeros(values.shape[1]), np.zeros((values.shape[1],) * 2)
        total += values.sum(0)
        moment += values.T @ values
        count += len(values)
    if not count:
        raise InputError("normalise=pca-power has no training sequence to be fitted on")
    mean = total / count
    values, vectors = np.linalg.eigh(moment / count - np.outer(mean, mean))
    clamp = values[int(CLAMPED * len(values))]
    if clamp <= 0:
        raise InputError("normalise=pca-power: the training descriptors vary in too few directions to be whitened")
    return (vectors / np.sqrt(np.maximum(values, clamp))) @ vectors.T


def apply(strip: np.ndarray, whitening: np.ndarray) -> np.ndarray:
    """A strip's descriptors (N, D), their own mean subtracted, whitened, each number replaced by its signed square
    root, and scaled to unit length: float32 (N, D). A descriptor that becomes zero stays zero."""
    values = strip.astype(np.float64)
    values = (values - values.mean(0)) @ whitening
    values = np.sign(values) * np.sqrt(np.abs(values))
    norm = np.linalg.norm(values, axis=1, keepdims=True)
    return (values / np.where(norm > 0, norm, 1)).astype(np.float32)
