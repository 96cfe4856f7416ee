"""Hardest-in-batch negatives: for each pair the nearest descriptor of another class in the batch.

Mishchuk et al., "Working hard to know your neighbor's margins", NeurIPS 2017 (cross); AdaSample, Eq. 14 (within).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hardmine.mining.batch import Batch, full_precision
from hardmine.mining.miners.base import Tuples, miners
from hardmine.options import Options

# Which halves of the batch are compared, (anchor of the tuple, negative): 0 = anchors a, 1 = positives p. With `swap`
# off only those that start at a.
_SIDES = {
    "cross": ((0, 1), (1, 0)),
    "within": ((0, 0), (1, 1)),
    "all": ((0, 1), (1, 0), (0, 0), (1, 1)),
}


@miners.register("hardest-in-batch")
class HardestInBatch(Options):
    """One tuple per pair i, with the nearest of these candidates over all pairs j of other classes:

    negatives: "cross", d(a_i, p_j) (HardNet); "within", d(a_i, a_j) (AdaSample's Eq. 14 as printed); "all", both.
    swap: the positive may stand for the anchor as well, which adds d(p_i, a_j) to "cross", d(p_i, p_j) to "within" and
    both to "all" (HardNet's anchor swap; Eq. 14 has it). Where one of these is least, the tuple is (p_i, a_i, .).
    near_duplicate: descriptors closer than this are taken for the same spot under another label and left out; HardNet
    uses 0.008 on the unit sphere, AdaSample none.

    Equal distances go to the first kind in the order a-p, p-a, a-a, p-p, then to the lowest j. Distances come from one
    matrix product in float32 (float64 for float64 descriptors), which is enough to choose; losses compute them anew. A
    row that is NaN is chosen, so that the loss shows it.
    """

    needs_drawn: ClassVar[bool] = False
    negatives: Literal["cross", "within", "all"] = "cross"
    swap: bool = True
    near_duplicate: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)

    def __call__(self, batch: Batch) -> Tuples:
        """See `Miner`. Drawn negatives are not looked at."""
        batch.parts()
        descriptors, n = batch.descriptors.detach(), batch.items
        device = descriptors.device
        if n == 0:
            none = torch.zeros(0, dtype=torch.int64, device=device)
            return Tuples(none, none, none, none)
        excluded = batch.excluded()

        best = torch.full((n,), torch.inf, dtype=full_precision(descriptors[:0]).dtype, device=device)
        anchor_side = torch.zeros(n, dtype=torch.int64, device=device)
        negative = torch.zeros(n, dtype=torch.int64, device=device)
        for side, other in _SIDES[self.negatives]:
            if side == 1 and not self.swap:
                continue
            distance, j = self._nearest(descriptors[side * n :][:n], descriptors[other * n :][:n], excluded)
            nearer = (distance < best) | distance.isnan()
            best = torch.where(nearer, distance, best)
            anchor_side = torch.where(nearer, side, anchor_side)
            negative = torch.where(nearer, j + other * n, negative)

        item = torch.nonzero(best != torch.inf).squeeze(1)
        anchor = item + anchor_side[item] * n
        positive = item + (1 - anchor_side[item]) * n
        return Tuples(anchor, positive, negative[item], item, skipped=n - len(item))

    @torch.no_grad()
    def _nearest(self, x: Tensor, y: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """For each row of x the squared distance to the nearest allowed row of y (inf: none) and its number."""
        with torch.autocast(x.device.type, enabled=False):
            x, y = full_precision(x), full_precision(y)
            rest = torch.addmm(y.square().sum(1), x, y.T, alpha=-2)  # the squared distance less |x|^2
        x_squared = x.square().sum(1)
        if self.near_duplicate > 0:
            excluded = excluded | (rest < (self.near_duplicate**2 - x_squared)[:, None])
        j = rest.masked_fill_(excluded, torch.inf).argmin(dim=1)  # the first of equal ones; NaN counts as least
        return (rest.gather(1, j[:, None]).squeeze(1) + x_squared).clamp(min=0), j
