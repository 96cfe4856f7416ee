"""GOR, the global orthogonal regulariser: descriptors of different spots are spread out like random directions.

Zhang et al., "Learning Spread-out Local Feature Descriptors", ICCV 2017. For two independent, uniform directions of
the unit sphere in d dimensions E[x . y] = 0 and E[(x . y)^2] = 1/d.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.options import Options
from hardmine.train.losses.base import full_precision
from hardmine.train.regularisers.base import Penalty, regularisers


@regularisers.register("gor")
class GlobalOrthogonal(Options):
    """alpha (M1^2 + [M2 - 1/d]_+) with M1 = mean_i a_i . n_i and M2 = mean_i (a_i . n_i)^2 over non-matching pairs.

    alpha: 1 in the paper; it multiplies both terms. second: the term of M2, "hinge" (the paper's), "l1" |M2 - 1/d| or
    "l2" (M2 - 1/d)^2. negatives: where n_i comes from: "drawn", a random patch of another class for each anchor, as
    published, which costs a third more forward passes; "batch", the positive of the next pair in the batch that is a
    non-match, which costs nothing.
    """

    needs_unit_norm: ClassVar[bool] = True
    alpha: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    second: Literal["hinge", "l1", "l2"] = "hinge"
    negatives: Literal["drawn", "batch"] = "drawn"

    @property
    def needs_drawn(self) -> bool:
        """See `Regulariser`."""
        return self.negatives == "drawn"

    def __call__(self, batch: Batch) -> Penalty:
        """See `Regulariser`. The figures are M1 and M2."""
        with torch.autocast(batch.descriptors.device.type, enabled=False):
            anchors, negatives = (full_precision(x) for x in self._pairs(batch))
            similarity = (anchors * negatives).sum(1)
            m1, m2 = similarity.mean(), similarity.square().mean()
            excess = m2 - 1 / anchors.shape[1]
            second = {"hinge": torch.relu, "l1": torch.abs, "l2": torch.square}[self.second](excess)
            return Penalty(self.alpha * (m1.square() + second), {"m1": m1.detach(), "m2": m2.detach()})

    def _pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Non-matching (anchors, others), float (n', D) each."""
        anchors, positives = batch.parts()
        if self.negatives == "drawn":
            return anchors, batch.drawn()
        allowed = ~batch.excluded()
        there = allowed.any(1)
        if not bool(there.any()):
            raise InputError("GOR needs a pair of non-matching descriptors, and this batch has none")
        # the first allowed pair after i, going round: the columns of line i rolled so that i + 1 comes first
        n = len(anchors)
        column = (torch.arange(n, device=allowed.device)[:, None] + torch.arange(1, n + 1, device=allowed.device)) % n
        following = column.gather(1, allowed.gather(1, column).int().argmax(1, keepdim=True)).squeeze(1)
        return anchors[there], positives[following[there]]
