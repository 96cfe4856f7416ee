"""Distance-weighted negatives: all distances alike often, whatever the dimension makes of them.

Wu et al., "Sampling matters in deep embedding learning", ICCV 2017; Eq. 2 of the PADS paper.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.density import log_inverse_density
from hardmine.mining.draws import draw, draw_even
from hardmine.mining.miners.base import Tuples, miners
from hardmine.mining.relations import Relations
from hardmine.options import Options


@miners.register("distance-weighted")
class DistanceWeighted(Options):
    """For every row a positive drawn evenly, and a negative drawn with p proportional to min(lambda, 1 / q(d)), where
    q(d) = d^(D - 2) (1 - d^2 / 4)^((D - 3) / 2) is the density of distances between even directions in D dimensions.

    It holds for unit descriptors. floor: smaller distances count as this one, which is how the published code sets the
    limit lambda. log_lambda: ln lambda, in place of or below it, for q as above, without a normalising constant
    (D = 128: the floor 0.5 is the same as 91.37). cutoff: farther rows are not drawn (the published code has none, and
    calls it harmful; pytorch-metric-learning has 1.4). Each anchor's weights are normalised by themselves, in
    log space.
    """

    needs_drawn: ClassVar[bool] = False
    floor: float = Field(0.5, gt=0, lt=2)
    log_lambda: float | None = Field(None, allow_inf_nan=False)
    cutoff: float | None = Field(None, gt=0)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tuples:
        """See `Miner`. Raises InputError where the descriptors have one dimension."""
        relations = Relations(batch)
        positive = draw_even(relations.positive, batch.generator)
        log_weight = self.log_weight(relations.distance, batch.descriptors.shape[1])
        negative = draw(log_weight.masked_fill(~relations.negative, -torch.inf), batch.generator)
        return relations.tuples(positive, negative)

    def log_weight(self, distance: Tensor, dim: int) -> Tensor:
        """Logarithms of unnormalised weights, float64, shaped as `distance`; -inf beyond the cutoff. dim: D."""
        log_weight = log_inverse_density(distance, dim, self.floor)
        if self.log_lambda is not None:
            log_weight = log_weight.clamp(max=self.log_lambda)
        return log_weight if self.cutoff is None else log_weight.masked_fill(distance > self.cutoff, -torch.inf)
