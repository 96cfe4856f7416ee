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
        p, s = pairs.p, pairs.similarity
        near, far = self.lam - p, s
        if omega:
            near, far = near + self.near(p, omega), far + self.far(s, omega)
        lowest = (p.detach() - (self.tau_b if self.select else self.lam)).masked_fill(~pairs.positive, torch.inf)
        lowest, order = lowest.sort(dim=1)  # what a negative must be above, ascending
        above = torch.searchsorted(lowest, s.detach())  # how many of these each similarity is above, (m, k)

        counts = pairs.negative.to(s.dtype)
        bins = s.new_zeros(len(s), p.shape[1] + 1)
        count, total = bins.scatter_add(1, above, counts), bins.scatter_add(1, above, far * counts)
        count, total = (x.flip(1).cumsum(1).flip(1)[:, 1:] for x in (count, total))  # of the negatives above each
        with_any = pairs.positive.gather(1, order) & (count > 0)
        terms = torch.where(with_any, near.gather(1, order) + total / count.clamp(min=1), 0)
        return terms.sum(1) / pairs.all_positives.clamp(min=1)
