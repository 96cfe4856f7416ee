"""Triplet margin loss on plain distances, as HardNet uses it.

Mishchuk et al., "Working hard to know your neighbor's margins", NeurIPS 2017.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, losses, triplet_output
from hardmine.train.losses.distances import hardnet


@losses.register("triplet-margin")
class TripletMargin(Options):
    """[margin + d(a, p) - d(a, n)]_+ with HardNet's distance d = sqrt(|x - y|^2 + 1e-6) + 1e-8, whose gradient is
    finite at 0 also. margin: 1 in HardNet (unit descriptors), 2 in TFeat."""

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = True
    margin: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        return triplet_output(self._loss, batch, tuples, weight)

    def _loss(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return torch.relu(self.margin + hardnet(anchor, positive) - hardnet(anchor, negative))
