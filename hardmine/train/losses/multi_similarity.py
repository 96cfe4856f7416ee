"""Multi-similarity loss, with its own mining or with DSDML's selection and dynamic terms.

Wang et al., "Multi-similarity loss with general pair weighting", CVPR 2019; DSDML, Eq. 6 and 11.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hardmine.train.losses.base import losses
from hardmine.train.losses.dynamic_sampling import DynamicSampling, Pairs, log_sum


@losses.register("multi-similarity")
class MultiSimilarity(DynamicSampling):
    """loss_i = near + far, near = 1/alpha log(1 + sum over P_i of e^(-alpha (s - lam))),
    far = 1/beta log(1 + sum over N_i of e^(beta (s - lam))).

    The dynamic terms are added to the exponents as they are, not scaled by alpha or beta. beta: 50 in both papers, 40
    in Wang's program. epsilon: Wang's mining (0.1 there): a negative counts where s + epsilon > min of P_i, a positive
    where s - epsilon < max of N_i; null: all pairs. It is another selection than `select`. Options beside these in
    `DynamicSampling`."""

    alpha: float = Field(default=2.0, gt=0.0, allow_inf_nan=False)
    beta: float = Field(default=50.0, gt=0.0, allow_inf_nan=False)
    lam: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)
    epsilon: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_selection(self) -> MultiSimilarity:
        if self.select and self.epsilon is not None:
            raise ValueError("epsilon and select are two ways to choose pairs: give one")
        return self

    def narrow(self, pairs: Pairs) -> Pairs:
        """See `DynamicSampling.narrow`."""
        if self.epsilon is None:
            return super().narrow(pairs)
        p, s = pairs.p.detach(), pairs.similarity.detach()
        least = p.masked_fill(~pairs.positive, torch.inf).amin(1, keepdim=True)
        most = s.masked_fill(~pairs.negative, -torch.inf).amax(1, keepdim=True)
        positive = pairs.positive & ~(p >= most + self.epsilon)
        return replace(pairs, positive=positive, negative=pairs.negative & ~(s <= least - self.epsilon))

    def loss(self, pairs: Pairs, omega: float) -> Tensor:
        """See `DynamicSampling.loss`."""
        p, s = pairs.p, pairs.similarity
        near, far = self.alpha * (self.lam - p), self.beta * (s - self.lam)
        if omega:
            near, far = near + self.near(p, omega), far + self.far(s, omega)
        return log_sum(near, pairs.positive, 1) / self.alpha + log_sum(far, pairs.negative, 1) / self.beta
