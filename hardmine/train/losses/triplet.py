"""Triplet loss on squared distances, as deep metric learning uses it.

Schroff et al., "FaceNet", CVPR 2015; Eq. 1 of the PADS paper.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, full_precision, losses, require_tuples
from hardmine.train.losses.per_tuple import sum_over_tuples


@losses.register("triplet")
class Triplet(Options):
    """[|a - p|^2 - |a - n|^2 + margin]_+ over the tuples. reduction: their "mean" (as usual), or their "sum" (the
    released code of PADS). An item with several tuples counts as often, one without not at all (`ht` is the mean over
    items)."""

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = True
    margin: float = Field(default=0.2, ge=0.0, allow_inf_nan=False)
    reduction: Literal["mean", "sum"] = "mean"

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`, with the divisor 1 or the number of tuples in place of the items'."""
        tuples = require_tuples(tuples)
        with torch.autocast(batch.descriptors.device.type, enabled=False):
            x = full_precision(batch.descriptors)
            anchor, positive, negative = (x[rows] for rows in tuples.triplets)
            near, far = (anchor - positive).square().sum(1), (anchor - negative).square().sum(1)
            per_tuple = torch.relu(near - far + self.margin)
            return sum_over_tuples(per_tuple, batch, tuples, weight, len(tuples) if self.reduction == "mean" else 1)
