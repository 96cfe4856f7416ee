"""What a miner is: from the descriptors of one batch to index tuples.

A batch of n pairs is 2n rows: rows 0..n-1 are the anchors, rows n..2n-1 their positives in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hardmine.errors import InputError
from hardmine.registry import Registry


@dataclass(frozen=True)
class Tuples:
    """Triplets among the 2n rows of a batch.

    anchor, positive, negative: int64 (T,), rows of the batch; the anchor may be any of the 2n rows. item: int64 (T,),
    the pair 0..n-1 that the triplet belongs to. skipped: number of pairs for which no triplet was found.
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
    def from_triplets(cls, triplets: tuple[Tensor, Tensor, Tensor], pairs: int) -> Tuples:
        """Triplets of a pytorch-metric-learning miner over the 2 x `pairs` rows of a batch. Each belongs to the pair of
        its anchor; a pair may have several."""
        anchor, positive, negative = triplets
        item = anchor % pairs
        return cls(anchor, positive, negative, item, skipped=pairs - len(torch.unique(item)))


class Miner(Protocol):
    """An in-batch strategy. Construct it with its options as keywords; an unknown or unfit one is an error."""

    def __call__(
        self,
        descriptors: Tensor,
        labels: Tensor,
        generator: torch.Generator | None = None,
        not_negative: Tensor | None = None,
    ) -> Tuples:
        """Choose tuples, without gradient.

        descriptors: float (2n, D), any norm. labels: int64 (2n,), a pair's two rows alike. generator: for strategies
        that draw. not_negative: bool (n, n), True where nothing of pair j is a negative for pair i, beyond those of the
        same label (classes that overlap in one image, say). A pair without a candidate is skipped and counted.
        """
        ...


miners: Registry[type[Miner]] = Registry("miner", "hardmine.mining.miners")


def count_pairs(descriptors: Tensor, labels: Tensor, not_negative: Tensor | None) -> int:
    """n of a batch of n pairs. Raises InputError where the three arguments of a miner do not fit each other."""
    rows = len(descriptors)
    if descriptors.dim() != 2 or rows % 2:
        raise InputError(
            f"descriptors have shape {tuple(descriptors.shape)}; expected (2n, D): n anchors, then their n positives"
        )
    n = rows // 2
    if labels.shape != (rows,):
        raise InputError(f"labels have shape {tuple(labels.shape)} for {rows} descriptors")
    if not torch.equal(labels[:n], labels[n:]):
        i = int(torch.nonzero(labels[:n] != labels[n:])[0])
        raise InputError(f"pair {i} joins labels {int(labels[i])} and {int(labels[n + i])}; a pair is of one class")
    if not_negative is not None and (not_negative.shape != (n, n) or not_negative.dtype != torch.bool):
        raise InputError(
            f"not_negative is {not_negative.dtype} of shape {tuple(not_negative.shape)}; expected bool ({n}, {n})"
        )
    return n
