"""What a miner is: from the descriptors of one batch to the tuples a loss is computed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.registry import Registry


@dataclass(frozen=True)
class Tuples:
    """Triplets among the rows of a batch.

    anchor, positive, negative: int64 (T,), rows of the batch. item: int64 (T,), the pair that the triplet belongs to,
    or, in a batch of single items, its anchor; it may have several. skipped: items for which no triplet was found.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor
    item: Tensor
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.anchor)

    @property
    def triplets(self) -> tuple[Tensor, Tensor, Tensor]:
        """(anchor, positive, negative), the form that pytorch-metric-learning's losses take as `indices_tuple`."""
        return self.anchor, self.positive, self.negative

    @classmethod
    def from_triplets(cls, triplets: tuple[Tensor, Tensor, Tensor], batch: Batch) -> Tuples:
        """Triplets of a pytorch-metric-learning miner over the rows of `batch`. Each belongs to its anchor's item."""
        anchor, positive, negative = triplets
        item = anchor if batch.pairs is None else anchor % batch.pairs
        return cls(anchor, positive, negative, item, skipped=batch.items - len(torch.unique(item)))


class Miner(Protocol):
    """An in-batch strategy. Construct it with its options as keywords; an unknown or unfit one is an error.

    needs_drawn: whether it takes the negatives that the plan drew.
    """

    needs_drawn: ClassVar[bool]

    def __call__(self, batch: Batch) -> Tuples:
        """Choose tuples, without gradient. An item without a candidate is skipped and counted."""
        ...


miners: Registry[type[Miner]] = Registry("miner", "hardmine.mining.miners")
