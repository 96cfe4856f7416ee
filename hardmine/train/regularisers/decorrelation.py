"""Decorrelation: the dimensions of the descriptors should not vary together (HardNet's `--decor`, after L2-Net)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from hardmine.mining.batch import Batch, full_precision
from hardmine.options import Options
from hardmine.train.regularisers.base import Penalty, regularisers


@regularisers.register("decorrelation")
class Decorrelation(Options):
    """weight x sqrt(sum of the squared off-diagonal elements of Z^T Z) / n, with Z (n, D) the anchors less their mean
    (specs 3.1); of a batch of single items, all of them. weight: 1 in HardNet's script. The root is of the sum + 1e-12,
    so that its gradient is finite at 0."""

    needs_drawn: ClassVar[bool] = False
    needs_unit_norm: ClassVar[bool] = False
    weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)

    def __call__(self, batch: Batch) -> Penalty:
        """See `Regulariser`. The figure is the penalty before its weight."""
        with torch.autocast(batch.descriptors.device.type, enabled=False):
            anchors = full_precision(batch.descriptors[: batch.items])
            n = max(len(anchors), 1)
            centred = anchors - anchors.sum(0) / n
            product = centred.T @ centred
            off_diagonal = product - torch.diag(product.diagonal())
            penalty = torch.sqrt(off_diagonal.square().sum() + 1e-12) / n
            return Penalty(self.weight * penalty, {"penalty": penalty.detach()})
