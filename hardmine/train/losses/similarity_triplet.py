"""Triplet loss on similarities over all triplets of a batch, and with DSDML's selection and dynamic terms.

DSDML, Eq. 4 and 10.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from hardmine.train.losses.base import losses
from hardmine.train.losses.dynamic_sampling import DynamicSampling, Pairs


@losses.register("similarity-triplet")
class SimilarityTriplet(DynamicSampling):
    """loss_i = 1/|P_i| sum over P_i of the mean, over those negatives n with s_p - s_n < lam, of lam - s_p + s_n.

    select: the negatives of a positive are those with s_n > s_p - tau_b instead, and no hinge is left. dynamic: both
    terms are added. |P_i| is the number of the anchor's positives before the selection, as in the released program; a
    positive without such a negative adds 0. Options beside lam in `DynamicSampling`.

    No triplet is listed: negatives are counted and summed between the thresholds of an anchor's positives, so memory
    is that of the matrix of similarities also where there are millions of triplets.
    """

    lam: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)

    def loss(self, pairs: Pairs, omega: float) -> Tensor:
        """See `DynamicSampling.loss`."""
        s = pairs.similarity
        row, column = torch.nonzero(pairs.positive, as_tuple=True)
        p = s[row, column]  # (T,), anchor by anchor
        near, far = self.lam - p, s
        if omega:
            near, far = near + omega * (self.tau_p - p).square(), far + omega * (s - self.tau_n).square()

        threshold = p.detach() - (self.tau_b if self.select else self.lam)
        level, table = _levels(threshold, row, pairs.positive.sum(1))
        passed = torch.searchsorted(table, s.detach().contiguous())  # thresholds that a similarity is above, (m, k)
        counts = pairs.negative.to(s.dtype)
        bins = s.new_zeros(len(s), table.shape[1] + 1)
        count, total = bins.scatter_add(1, passed, counts), bins.scatter_add(1, passed, far * counts)
        count, total = (x.flip(1).cumsum(1).flip(1)[row, level + 1] for x in (count, total))
        per_positive = torch.where(count > 0, near + total / count.clamp(min=1), 0)
        return s.new_zeros(len(s)).index_add(0, row, per_positive) / pairs.all_positives.clamp(min=1)


def _levels(threshold: Tensor, row: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """(the place of each threshold among its anchor's, ascending, int64 (T,); all of them so sorted, (m, most of an
    anchor), inf padded). threshold, row: (T,), anchor by anchor. size: int64 (m,), how many an anchor has."""
    place = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]
    most = int(size.max()) if len(size) else 0
    table = threshold.new_full((len(size), most), torch.inf)
    table[row, place] = threshold
    table, order = table.sort(dim=1)
    level = torch.empty_like(order).scatter_(1, order, torch.arange(most, device=row.device).expand_as(order))
    return level[row, place], table
