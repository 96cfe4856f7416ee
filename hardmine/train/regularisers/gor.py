"""GOR, the global orthogonal regulariser: descriptors of different spots are spread out like random directions.

Zhang et al., "Learning Spread-out Local Feature Descriptors", ICCV 2017. For two independent, uniform directions of
the unit sphere in d dimensions E[x . y] = 0 and E[(x . y)^2] = 1/d.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hardmine.mining.batch import Batch, full_precision
from hardmine.options import Options
from hardmine.train.regularisers.base import Penalty, regularisers


@regularisers.register("gor")
class GlobalOrthogonal(Options):
    """alpha (M1^2 + [M2 - 1/d]_+) with M1 = mean_i a_i . n_i and M2 = mean_i (a_i . n_i)^2 over non-matching pairs.

    alpha: 1 in the paper; it multiplies both terms (register A10). second: the term of M2, "hinge" (the paper's), "l1"
    |M2 - 1/d| or "l2" (M2 - 1/d)^2. moment: M2 over "anchors", as above and in the paper, or the mean of the "larger"
    of (a_i . n_i)^2 and (p_i . n_i)^2, as in the released program. negatives: where n_i comes from: "drawn", a random
    patch of another class for each anchor, as published, which costs half as many forward passes again; "batch" (ours),
    the positive of the next pair in the batch that is a non-match, which costs nothing.
    """

    needs_unit_norm: ClassVar[bool] = True
    alpha: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    second: Literal["hinge", "l1", "l2"] = "hinge"
    moment: Literal["anchors", "larger"] = "anchors"
    negatives: Literal["drawn", "batch"] = "drawn"

    @property
    def needs_drawn(self) -> bool:
        """See `Regulariser`."""
        return self.negatives == "drawn"

    def __call__(self, batch: Batch) -> Penalty:
        """See `Regulariser`. The figures are M1 and M2; a batch without a non-match gives 0 for all three."""
        with torch.autocast(batch.descriptors.device.type, enabled=False):
            anchors, positives = (full_precision(x) for x in batch.parts())
            negatives, there = self._negatives(batch, full_precision(batch.descriptors))
            count = there.sum()
            similarity = (anchors * negatives).sum(1)
            squared = similarity.square()
            if self.moment == "larger":
                squared = torch.maximum(squared, (positives * negatives).sum(1).square())
            m1, m2 = ((value * there).sum() / count.clamp(min=1) for value in (similarity, squared))
            excess = m2 - 1 / anchors.shape[1]
            second = {"hinge": torch.relu, "l1": torch.abs, "l2": torch.square}[self.second](excess)
            penalty = self.alpha * (m1.square() + second) * (count > 0)
            return Penalty(penalty, {"m1": m1.detach(), "m2": m2.detach()})

    def _negatives(self, batch: Batch, descriptors: Tensor) -> tuple[Tensor, Tensor]:
        """(n_i, float (n, D); bool (n,): whether there is one for i)."""
        n = batch.items
        if self.negatives == "drawn":
            batch.drawn()  # says what is missing
            return descriptors[2 * n :], torch.ones(n, dtype=torch.bool, device=descriptors.device)
        allowed = ~batch.excluded()
        # the first allowed pair after i, going round: line i rolled so that i + 1 comes first
        step = torch.arange(n, device=allowed.device)
        column = (step[:, None] + step + 1) % max(n, 1)
        first = allowed.gather(1, column).int().argmax(1, keepdim=True) if n else column
        return descriptors[n + column.gather(1, first).reshape(-1)], allowed.any(1)
