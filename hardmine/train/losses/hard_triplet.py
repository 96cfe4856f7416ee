"""AdaSample's losses: the hard triplet loss on squared Euclidean distances (HT) and on squared angles (AHT), Eq. 15."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, losses, triplet_output


@losses.register("ht")
class HardTriplet(Options):
    """HT: [t + d(a, p)^2 - d(a, n)^2]_+ with the Euclidean distance. t: the margin, 1 in the paper."""

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = True
    t: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        return triplet_output(self._loss, batch, tuples, weight)

    def _loss(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return torch.relu(self.t + self._squared(anchor, positive) - self._squared(anchor, negative))

    def _squared(self, x: Tensor, y: Tensor) -> Tensor:
        return (x - y).square().sum(dim=1)


@losses.register("aht")
class AngularHardTriplet(HardTriplet):
    """AHT: the same with the angle between unit descriptors, in radians, in place of the distance.

    arccos(x . y) has an infinite gradient at 0 and pi; the angle is computed as 2 atan2(|x - y|, |x + y|), equal to it
    on the unit sphere and accurate everywhere.
    """

    needs_unit_norm: ClassVar[bool] = True

    def _squared(self, x: Tensor, y: Tensor) -> Tensor:
        return (2 * torch.atan2(_length(x - y), _length(x + y))).square()


def _length(x: Tensor) -> Tensor:
    return torch.sqrt(x.square().sum(dim=1) + 1e-12)  # the gradient is finite at 0
