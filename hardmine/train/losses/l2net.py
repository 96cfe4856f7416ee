"""L2-Net's relative loss: each anchor chooses its positive among those of the whole batch, and the reverse.

Tian et al., "L2-Net: deep learning of discriminative patch descriptor in Euclidean space", CVPR 2017, in the form of
HardNet's program (specs 3.1).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, losses, whole_batch_output
from hardmine.train.losses.distances import all_pairs, between

_EPSILON = 1e-6  # under the root
_LOG_FLOOR = math.log(1e-8)  # added to the denominator


@losses.register("l2net")
class L2NetLoss(Options):
    """-log(e^(2 - D_ii) / (sum_j e^(2 - D_ij) + 1e-8)) with D_ij = sqrt(|a_i - p_j|^2 + 1e-6), over all j that are
    negatives of i and i itself. swap: the same over the columns, sum_j e^(2 - D_ji), is added (HardNet's anchor swap).
    """

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = False
    swap: bool = True

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        return whole_batch_output(self._loss, batch, tuples, weight)

    def _loss(self, batch: Batch) -> Tensor:
        anchors, positives = batch.parts()
        excluded = batch.excluded()
        own = 2 - between(anchors, positives, _EPSILON)
        logit = (2 - all_pairs(anchors, positives, _EPSILON)).masked_fill(excluded, -torch.inf)
        logit = logit.diagonal_scatter(own)
        loss = _chosen(logit, own) + _chosen(logit.T, own) if self.swap else _chosen(logit, own)
        return torch.where((~excluded).any(1), loss, 0)


def _chosen(logit: Tensor, own: Tensor) -> Tensor:
    """-log of the share of `own` in its line, (n,)."""
    floor = logit.new_full((len(logit), 1), _LOG_FLOOR)
    return torch.cat([logit, floor], dim=1).logsumexp(1) - own
