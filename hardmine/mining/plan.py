"""A batch plan: which entries meet in one batch, with which weights. Plain arrays, made before any pixel moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """n pairs of one training step.

    anchor_row, positive_row: int64 (n,) rows of the patch store. anchor_view, positive_view: int16 (n,). label: int64
    (n,), all distinct. weight: float32 (n,), mean 1. dihedral: uint8 (n,), the flip and turn both patches of a pair get
    (`pipeline.pixels.turn_and_flip`).

    As a sequence it is the 2n rows, anchors first, so that it works with `DataLoader(batch_sampler=...)` over any
    dataset in row order. (It is deliberately no `collections.abc.Sequence`: torch rebuilds those when it pins memory.)
    """

    step: int
    anchor_row: np.ndarray
    positive_row: np.ndarray
    anchor_view: np.ndarray
    positive_view: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    dihedral: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """int64 (2n,): anchors, then positives."""
        return np.concatenate([self.anchor_row, self.positive_row])

    @property
    def views(self) -> np.ndarray:
        """int16 (2n,): anchors, then positives."""
        return np.concatenate([self.anchor_view, self.positive_view])

    def __len__(self) -> int:
        return 2 * len(self.anchor_row)

    def __getitem__(self, slot: int) -> int:
        return int(self.rows[slot])

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchPlan) and all(
            np.array_equal(mine, other.__dict__[name]) for name, mine in self.__dict__.items()
        )

    __hash__ = None  # type: ignore[assignment]
