"""Views: one row seen through stored, seeded rotations (the `*` of AdaSample: a class extended to 15 patches).

A view is a number, not a copy of pixels: (seed, row, view) alone gives its angle, on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from hardmine.options import Options


class Views(Options):
    """How classes are extended by rotated views (AdaSample, section 4.1; angles: register A9).

    per_class: entries a class has at least, its own rows included; larger classes stay as they are.
    max_degrees: angles are uniform in [-max_degrees, max_degrees] about the patch centre. seed: of the angles.
    """

    per_class: int = Field(15, ge=2)
    max_degrees: float = Field(30.0, ge=0, le=180)
    seed: int = Field(0, ge=0)

    def angles(self, rows: np.ndarray, views: np.ndarray) -> np.ndarray:
        """Rotation of each (row, view), float32 (n,) in radians; 0 where the view is 0 (the item itself)."""
        counter = (np.asarray(rows, np.uint64) << np.uint64(16)) + np.asarray(views, np.uint64)
        u = uniform(self.seed, counter)
        angle = np.deg2rad(self.max_degrees) * (2 * u - 1)
        return np.where(np.asarray(views) == 0, 0, angle).astype(np.float32)


def uniform(seed: int, counter: np.ndarray) -> np.ndarray:
    """Counter-based uniform numbers in [0, 1): float64, one for each uint64 of `counter`, a function of (seed, counter)
    alone. The SplitMix64 finaliser, applied twice: once to the seed, once to the counter that it offsets."""
    with np.errstate(over="ignore"):
        x = _mix(np.asarray(counter, np.uint64) + _mix(np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15)))
    return (x >> np.uint64(11)) * 2.0**-53


def _mix(x: Any) -> Any:
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
