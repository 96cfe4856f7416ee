"""Triplet ranking loss, as GOR trains it on random triplets.

Zhang et al., "Learning Spread-out Local Feature Descriptors", ICCV 2017, Eq. 2.
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
from hardmine.train.losses.distances import between


@losses.register("triplet-ranking")
class TripletRanking(Options):
    """[margin + d(a, p) - d(a, n)]_+ with d = sqrt(|x - y|^2 + epsilon), not squared (register A10). margin: 0.5 in the
    paper. epsilon: 1e-6 in GOR's program, 1e-8 in HardNet's on random triplets. The published negatives are miner
    `drawn`, its anchor swap included."""

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = True
    margin: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)
    epsilon: float = Field(default=1e-6, gt=0.0, allow_inf_nan=False)

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        return triplet_output(self._loss, batch, tuples, weight)

    def _loss(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        to_positive = between(anchor, positive, self.epsilon)
        return torch.relu(self.margin + to_positive - between(anchor, negative, self.epsilon))
