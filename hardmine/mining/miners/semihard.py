"""Semi-hard negatives: farther than the positive, but by less than the margin.

Schroff et al., "FaceNet: a unified embedding for face recognition and clustering", CVPR 2015, as a baseline of PADS.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from hardmine.mining.batch import Batch
from hardmine.mining.draws import draw_even
from hardmine.mining.miners.base import Tuples, miners
from hardmine.mining.relations import Relations
from hardmine.options import Options


@miners.register("semi-hard")
class SemiHard(Options):
    """For every row a positive drawn evenly, and a negative drawn evenly from those with

    d(a, p) < d(a, n) < d(a, p) + margin (plain distances, both strict).

    fallback: where there is none, any negative ("random", as published) or no tuple ("skip")."""

    needs_drawn: ClassVar[bool] = False
    margin: float = Field(0.2, gt=0, allow_inf_nan=False)
    fallback: Literal["random", "skip"] = "random"

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tuples:
        """See `Miner`."""
        relations = Relations(batch)
        positive = draw_even(relations.positive, batch.generator)
        if len(relations) == 0:
            return relations.tuples(positive, positive)
        d_ap = relations.distance.gather(1, positive.clamp(min=0)[:, None])
        semi_hard = (relations.distance > d_ap) & (relations.distance < d_ap + self.margin)
        negative = draw_even(relations.negative & semi_hard, batch.generator)
        if self.fallback == "random":
            negative = torch.where(negative < 0, draw_even(relations.negative, batch.generator), negative)
        return relations.tuples(positive, negative)
