"""What the rows of a batch are to each other: positives, negatives, and the distances between them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners.base import Tuples


class Relations:
    """Tables (r, r) over the rows that may be anchors, line = anchor, for miners that choose among single rows.

    r is all m rows of a batch of single items, and the 2n anchors and positives of a batch of pairs, where every row is
    an anchor of its pair's item and drawn negatives are not looked at. positive: bool, another row of the same label.
    negative: bool, a row of another label that `not_negative` does not exclude. same: bool, of the same label, itself
    included. A row is known by its number: equal descriptors are two rows.
    """

    def __init__(self, batch: Batch):
        self.batch = batch
        rows = len(batch.descriptors) if batch.pairs is None else 2 * batch.pairs
        self._descriptors = batch.descriptors.detach()[:rows]
        device = self._descriptors.device
        labels = batch.labels[:rows].to(device)
        self.same = labels[:, None] == labels[None, :]
        self.positive = self.same.clone().fill_diagonal_(False)
        self.negative = ~self.same
        if batch.not_negative is not None:
            self.negative &= ~batch.not_negative.to(device).repeat(2, 2)

    def __len__(self) -> int:
        return len(self.same)

    @cached_property
    def distance(self) -> Tensor:
        """Euclidean distances (r, r) without gradient, float32 (float64 for float64 descriptors): from differences, so
        that equal descriptors have distance 0 on every device. Computed once."""
        x = self._descriptors
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            x = x if x.dtype == torch.float64 else x.float()
            return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")

    def tuples(self, positive: Tensor, negative: Tensor) -> Tuples:
        """One tuple for every row that has both. positive, negative: int64 (r,), rows, -1 for none."""
        anchor = torch.nonzero((positive >= 0) & (negative >= 0)).squeeze(1)
        return Tuples.from_triplets((anchor, positive[anchor], negative[anchor]), self.batch)
