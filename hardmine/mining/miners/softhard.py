"""Soft-hard triplets: positives beyond the nearest negative, negatives within the farthest positive.

The baseline of that name in Roth et al., "Revisiting training strategies and generalization performance in deep metric
learning", ICML 2020, a soft form of hard mining.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from hardmine.mining.batch import Batch
from hardmine.mining.draws import draw_even
from hardmine.mining.miners.base import Tuples, miners
from hardmine.mining.relations import Relations
from hardmine.options import Options


@miners.register("soft-hard")
class SoftHard(Options):
    """For every row a negative drawn evenly from those with d(a, n) < max_p d(a, p), and a positive drawn evenly from
    those with d(a, p) > min_n d(a, n) (both strict).

    fallback: where there is none, any positive or negative ("random", as published) or no tuple ("skip")."""

    needs_drawn: ClassVar[bool] = False
    fallback: Literal["random", "skip"] = "random"

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tuples:
        """See `Miner`."""
        relations, generator = Relations(batch), batch.generator
        if len(relations) == 0:
            nothing = draw_even(relations.positive, generator)
            return relations.tuples(nothing, nothing)
        distance = relations.distance
        farthest = distance.masked_fill(~relations.positive, -torch.inf).amax(1, keepdim=True)
        nearest = distance.masked_fill(~relations.negative, torch.inf).amin(1, keepdim=True)
        positive = draw_even(relations.positive & (distance > nearest), generator)
        negative = draw_even(relations.negative & (distance < farthest), generator)
        if self.fallback == "random":
            positive = torch.where(positive < 0, draw_even(relations.positive, generator), positive)
            negative = torch.where(negative < 0, draw_even(relations.negative, generator), negative)
        return relations.tuples(positive, negative)
