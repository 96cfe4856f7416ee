"""What an evaluation protocol is: a patch store and a way to describe its rows in, figures out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hardmine.registry import Registry
from hardmine.store.patches import PatchStore

Describe = Callable[[np.ndarray], np.ndarray]  # int64 (n,) rows -> float32 (n, D) descriptors


@dataclass
class Evaluated:
    """metrics: name to value (rates in 0..1). facts: what the figures were measured on, JSON. curve: (x, y) arrays to
    draw, with their axis names."""

    metrics: dict[str, float]
    facts: dict[str, Any] = field(default_factory=dict)
    curve: tuple[np.ndarray, np.ndarray] | None = None


class Protocol:
    """One published evaluation. `evaluate` measures descriptors on a split of a store; `plot` draws its curves."""

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None, pairs: str | None) -> Evaluated:
        """Raises InputError where the store does not hold what the protocol needs."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it evaluates")

    def plot(self, results: dict[str, Evaluated], file: Path) -> None:
        """Draw the curves of several descriptors, by name, to a PNG."""
        raise NotImplementedError(f"{type(self).__name__} draws nothing")


protocols: Registry[type[Protocol]] = Registry("protocol", "hardmine.protocols")
