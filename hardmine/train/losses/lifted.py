"""Lifted structured loss: each positive pair against all negatives of both its ends, in a smooth maximum.

Song et al., "Deep metric learning via lifted structured feature embedding", CVPR 2016; "LSSS" in the GOR paper.
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
from hardmine.train.losses.distances import all_pairs, between

_EPSILON = 1e-12  # under the root


@losses.register("lifted")
class Lifted(Options):
    """1/(2 |P|) sum over P of J_ij^2, J_ij = [log(sum_k e^(margin - D_ik) + sum_k e^(margin - D_jk)) + D_ij]_+.

    P: all pairs of rows of one class, once each; k: the negatives of i, of j; one that is a negative of both counts
    twice. D: the Euclidean distance, not squared. margin: 1 in the published program. It works on rows, so on pairs
    (anchors and positives, both ends alike) and on single items; drawn negatives are not looked at.

    J_ij^2 belongs half to the item of row i and half to that of row j, and the items' losses are scaled so that their
    mean is the above. Where classes do not repeat among the pairs of a batch that is J^2 / 2 of each pair.
    """

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = False
    margin: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        return whole_batch_output(self._loss, batch, tuples, weight)

    def _loss(self, batch: Batch) -> Tensor:
        x, positive, negative = batch.rows()
        i, j = torch.nonzero(positive.triu(1), as_tuple=True)
        low = torch.finfo(x.dtype).min / 2  # finite, so that gradients are; below every distance
        nearness = (self.margin - all_pairs(x, x, _EPSILON)).masked_fill(~negative, low).logsumexp(1)
        j_ij = torch.relu(torch.logaddexp(nearness[i], nearness[j]) + between(x[i], x[j], _EPSILON))
        half = j_ij.square() / 2 * (batch.items / (2 * max(len(i), 1)))
        zeros = x.new_zeros(batch.items)
        return zeros.index_add(0, i % max(batch.items, 1), half).index_add(0, j % max(batch.items, 1), half)
