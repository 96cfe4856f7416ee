"""HardNet's softmax loss: a choice between the positive and the one mined negative (specs 3.1).

Mishchuk et al., "Working hard to know your neighbor's margins", NeurIPS 2017 (one of the losses compared there).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, losses, triplet_output
from hardmine.train.losses.distances import hardnet

_LOG_FLOOR = math.log(1e-8)  # added to the denominator


@losses.register("hardnet-softmax")
class HardNetSoftmax(Options):
    """-log(e^(2 - d(a, p)) / (e^(2 - d(a, p)) + e^(2 - d(a, n)) + 1e-8)) with HardNet's distance, in log space."""

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = True

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        return triplet_output(self._loss, batch, tuples, weight)

    def _loss(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        to_positive, to_negative = 2 - hardnet(anchor, positive), 2 - hardnet(anchor, negative)
        floor = torch.full_like(to_positive, _LOG_FLOOR)
        return torch.stack([to_positive, to_negative, floor]).logsumexp(0) - to_positive
