"""Triplets drawn by a distribution over distances.

Section 4 of the PADS paper and its released sampler; where they differ, register A1 and A2.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.draws import draw, draw_even
from hardmine.mining.miners.base import Tuples
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.relations import Relations

Draw = Literal["member", "bin"]


def draw_triplets(
    batch: Batch, distribution: Distribution, how: Draw = "member", self_regularisation: bool = True
) -> Tuples:
    """One triplet for every row of the batch as the anchor.

    how: see `log_weights`. self_regularisation: the negative is drawn among all rows, the anchor's own class and the
    anchor included, and the positive may be the anchor, as published; otherwise a != p and label(n) != label(a), and an
    anchor without one of them is skipped and counted. Where the weights of all candidates are 0 the negative is drawn
    evenly among the rows of other labels.
    """
    relations, generator = Relations(batch), batch.generator
    everything = torch.ones_like(relations.negative)
    candidate = everything if self_regularisation else relations.negative
    negative = draw(log_weights(relations.distance, candidate, distribution, how), generator)
    negative = torch.where(negative < 0, draw_even(relations.negative, generator), negative)
    positive = draw_even(relations.same if self_regularisation else relations.positive, generator)
    return relations.tuples(positive, negative)


def log_weights(distance: Tensor, candidate: Tensor, distribution: Distribution, how: Draw) -> Tensor:
    """Logarithms of unnormalised weights float64 (n, m), -inf for what must not be drawn.

    distance: float (n, m). candidate: bool (n, m). how: "member", each candidate has the weight p_k of its bin, so that
    bin k is drawn in proportion to p_k n_k (the released code); "bin", they share it, so that it is drawn in proportion
    to p_k among the bins that have candidates (the paper's text).
    """
    number = distribution.support.bin_of(distance)
    candidate = candidate & (number >= 0)
    number = number.clamp(min=0)
    log_weight = torch.log(torch.from_numpy(distribution.p)).to(distance.device)[number]
    if how == "bin":
        members = torch.zeros(len(number), distribution.support.bins, dtype=torch.float64, device=number.device)
        members.scatter_add_(1, number, candidate.double())
        log_weight = log_weight - members.gather(1, number).clamp(min=1).log()
    return log_weight.masked_fill(~candidate, -torch.inf)
