"""Binomial deviance on all pairs of a batch, and with DSDML's selection and dynamic terms.

Yi et al., "Deep metric learning for person re-identification", ICPR 2014; DSDML, Eq. 3 and 8.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from hardmine.train.losses.base import losses
from hardmine.train.losses.dynamic_sampling import DynamicSampling, Pairs


@losses.register("binomial-deviance")
class BinomialDeviance(DynamicSampling):
    """loss_i = mean over P_i of log(1 + e^(alpha (lam - s))) + mean over N_i of log(1 + e^(beta (s - lam))).

    The dynamic terms are scaled: alpha [(lam - s) + omega (tau_p - s)^2], beta [(s - lam) + omega (s - tau_n)^2].
    Options beside these in `DynamicSampling`."""

    alpha: float = Field(default=2.0, ge=0.0, allow_inf_nan=False)
    beta: float = Field(default=40.0, ge=0.0, allow_inf_nan=False)
    lam: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)

    def loss(self, pairs: Pairs, omega: float) -> Tensor:
        """See `DynamicSampling.loss`."""
        s = pairs.similarity
        positive, negative = pairs.positive.to(s.dtype), pairs.negative.to(s.dtype)
        exponent = (self.beta - (self.alpha + self.beta) * positive) * (s - self.lam)
        if omega:
            scale = omega * (self.beta + (self.alpha - self.beta) * positive)
            exponent = exponent + scale * (s - (self.tau_n + (self.tau_p - self.tau_n) * positive)).square()
        share = positive / positive.sum(1, keepdim=True).clamp(min=1)  # of each pair in its anchor's two means
        share = share + negative / negative.sum(1, keepdim=True).clamp(min=1)
        return (softplus(exponent, threshold=40) * share).sum(1)  # beyond it e^-x is no part of the number
