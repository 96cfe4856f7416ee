"""N-pair loss: each anchor tells its positive from those of all other pairs at once.

Sohn, "Improved deep metric learning with multi-class N-pair loss objective", NeurIPS 2016.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, losses, whole_batch_output


@losses.register("n-pair")
class NPair(Options):
    """log(1 + sum_j e^(a_i . p_j - a_i . p_i)) over all j that are negatives of i: the cross-entropy of a_i . p_j.

    l2: factor of (|a_i|^2 + |p_i|^2) / 2, which keeps descriptors of free length short; on the unit sphere it is a
    constant. Two published programs have 0.02 and 0.005, each with a norm of its own definition (specs 2).
    """

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = False
    l2: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        return whole_batch_output(self._loss, batch, tuples, weight)

    def _loss(self, batch: Batch) -> Tensor:
        anchors, positives = batch.parts()
        excluded = batch.excluded()
        similarity = anchors @ positives.T
        own = similarity.diagonal()
        others = excluded & ~torch.eye(len(own), dtype=torch.bool, device=excluded.device)
        loss = similarity.masked_fill(others, -torch.inf).logsumexp(1) - own
        if self.l2 > 0:
            loss = loss + self.l2 * (anchors.square().sum(1) + positives.square().sum(1)) / 2
        return torch.where((~excluded).any(1), loss, 0)
