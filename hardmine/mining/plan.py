"""Batch plans: which entries meet in one batch, with which weights. Plain arrays, made before any pixel moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hardmine.errors import InputError


class Plan:
    """What all plans have in common. As a sequence a plan is its rows, so that it works with
    `DataLoader(batch_sampler=...)` over any dataset in row order. (It is deliberately no `collections.abc.Sequence`:
    torch rebuilds those when it pins memory.)

    step: of the run. rows: int64 (m,) of the patch store. labels: int64 (m,). weight: float32 (items,) or None.
    pairs: n where the rows are n anchors, n positives and perhaps n drawn negatives; None for single items.
    """

    step: int
    weight: np.ndarray | None
    pairs: int | None

    @property
    def rows(self) -> np.ndarray:
        """int64 (m,)."""
        raise NotImplementedError(f"{type(self).__name__} does not say which rows it has")

    @property
    def labels(self) -> np.ndarray:
        """int64 (m,)."""
        raise NotImplementedError(f"{type(self).__name__} does not say which labels it has")

    def slots(self, rank: int, size: int) -> np.ndarray:
        """Places in `rows`, int64 (m / size,), of the share of process `rank` of `size`: shares are equal and disjoint,
        and a pair is whole, with its drawn negative. Raises InputError where they cannot be equal."""
        items = len(self.rows) if self.pairs is None else self.pairs
        require_equal_shares(items, size, "items" if self.pairs is None else "pairs")
        share = items // size
        own = np.arange(rank * share, (rank + 1) * share)
        return (np.arange(0, len(self.rows), items)[:, None] + own).reshape(-1)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, slot: int) -> int:
        return int(self.rows[slot])

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows.tolist())

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            np.array_equal(mine, other.__dict__[name]) for name, mine in self.__dict__.items()
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class ItemPlan(Plan):
    """Single items of classes with one or more of them: row, label int64 (m,)."""

    step: int
    row: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None = None
    pairs: None = None

    @property
    def rows(self) -> np.ndarray:
        """int64 (m,)."""
        return self.row

    @property
    def labels(self) -> np.ndarray:
        """int64 (m,)."""
        return self.label


@dataclass(frozen=True, eq=False)
class BatchPlan(Plan):
    """n pairs of one training step.

    anchor_row, positive_row: int64 (n,) rows of the patch store. anchor_view, positive_view: int16 (n,). label: int64
    (n,). weight: float32 (n,), mean 1. dihedral: uint8 (n,), the flip and turn all patches of a pair get
    (`pipeline.pixels.turn_and_flip`). negative_row, negative_view, negative_label: (n,) the same of a negative drawn at
    random for each pair, from another class; None where nothing asked for them.
    """

    step: int
    anchor_row: np.ndarray
    positive_row: np.ndarray
    anchor_view: np.ndarray
    positive_view: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    dihedral: np.ndarray
    negative_row: np.ndarray | None = None
    negative_view: np.ndarray | None = None
    negative_label: np.ndarray | None = None

    @property
    def pairs(self) -> int:  # type: ignore[override]
        """n."""
        return len(self.anchor_row)

    @property
    def rows(self) -> np.ndarray:
        """int64 (2n,) or (3n,): anchors, then positives, then drawn negatives."""
        return _joined(self.anchor_row, self.positive_row, self.negative_row)

    @property
    def views(self) -> np.ndarray:
        """int16, in the order of `rows`."""
        return _joined(self.anchor_view, self.positive_view, self.negative_view)

    @property
    def labels(self) -> np.ndarray:
        """int64, in the order of `rows`."""
        return _joined(self.label, self.label, self.negative_label)

    @property
    def symmetries(self) -> np.ndarray:
        """uint8, `dihedral` in the order of `rows`."""
        return np.tile(self.dihedral, 2 if self.negative_row is None else 3)


def require_equal_shares(items: int, size: int, what: str = "items") -> None:
    """Raises InputError unless `size` processes can have equally many of the `items` of a batch."""
    if items % size:
        raise InputError(
            f"a batch of {items} {what} cannot be shared evenly among {size} processes: choose a multiple of {size} "
            f"(train.pairs, or the sampler's classes and per_class), or start another number of processes"
        )


def _joined(anchors: np.ndarray, positives: np.ndarray, negatives: np.ndarray | None) -> np.ndarray:
    return np.concatenate([anchors, positives] if negatives is None else [anchors, positives, negatives])
