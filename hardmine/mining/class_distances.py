"""Distances from an anchor to every entry of its class: from a mining round, or from the network as it is now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from hardmine.mining.entries import Entries

Embed = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (rows, views) of n entries -> descriptors float32 (n, D)


class Distances(Protocol):
    """Where a sampler's distances come from."""

    def from_anchor(self, classes: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Euclidean distances float32 (n, widest class): row r holds those from entry slot[r] of classes[r] to all
        entries of that class in entry order, NaN at the anchor itself and beyond the class."""
        ...


class StoredDistances:
    """Read from a round's `pair_distance` (condensed upper triangles, ragged by class)."""

    def __init__(self, pair_distance: np.ndarray, pair_offsets: np.ndarray, entry_offsets: np.ndarray):
        self._values, self._offsets, self._sizes = pair_distance, pair_offsets, np.diff(entry_offsets)

    def from_anchor(self, classes: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """See `Distances`."""
        size = self._sizes[classes][:, None]
        other = np.arange(size.max())[None, :]
        low, high = np.minimum(slot[:, None], other), np.maximum(slot[:, None], other)
        place = self._offsets[classes][:, None] + low * size - low * (low + 1) // 2 + high - low - 1
        valid = (other < size) & (other != slot[:, None])
        distance = np.full(valid.shape, np.nan, np.float32)
        distance[valid] = self._values[place[valid]]
        return distance


class OnlineDistances:
    """AdaSample's Algorithm 1 to the letter: embed all entries of the drawn classes with the present weights."""

    def __init__(self, entries: Entries, embed: Embed):
        self._entries, self._embed = entries, embed

    def from_anchor(self, classes: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """See `Distances`."""
        start, size = self._entries.offsets[classes], np.diff(self._entries.offsets)[classes]
        other = np.arange(size.max())[None, :]
        valid = other < size[:, None]
        entry = (start[:, None] + other)[valid]
        descriptors = self._embed(self._entries.row[entry], self._entries.view[entry])
        first = np.concatenate([[0], np.cumsum(size)[:-1]])
        difference = descriptors - np.repeat(descriptors[first + slot], size, axis=0)
        distance = np.full(valid.shape, np.nan, np.float32)
        distance[valid] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        distance[np.arange(len(slot)), slot] = np.nan
        return distance
