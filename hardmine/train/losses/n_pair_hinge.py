"""The loss that GOR's program calls N-pair: hinges where Sohn's has a softmax (specs 5).

Released with Zhang et al., "Learning Spread-out Local Feature Descriptors", ICCV 2017.
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


@losses.register("n-pair-hinge")
class NPairHinge(Options):
    """sum_j [a_i . p_j + margin - a_j . p_j]_+ over all j that are negatives of i: the similarity of pair j itself, not
    that of pair i, is what a_i . p_j must stay below. margin: 0.5 in the program, which also adds the constant margin
    of j = i; it is left out here."""

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = False
    margin: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        return whole_batch_output(self._loss, batch, tuples, weight)

    def _loss(self, batch: Batch) -> Tensor:
        anchors, positives = batch.parts()
        similarity = anchors @ positives.T
        return torch.relu(similarity + self.margin - similarity.diagonal()).masked_fill(batch.excluded(), 0).sum(1)
