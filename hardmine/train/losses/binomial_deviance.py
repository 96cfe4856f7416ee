"""Binomial deviance on all pairs of a batch, and with DSDML's selection and dynamic terms.

Yi et al., "Deep metric learning for person re-identification", ICPR 2014; DSDML, Eq. 3 and 8.
"""

from __future__ import annotations

import torch
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
        p, s = pairs.p, pairs.similarity
        near, far = self.lam - p, s - self.lam
        if omega:
            near, far = near + self.near(p, omega), far + self.far(s, omega)
        return _mean(self.alpha * near, pairs.positive) + _mean(self.beta * far, pairs.negative)


def _mean(exponent: Tensor, mask: Tensor) -> Tensor:
    """mean_j log(1 + e^x_ij) over the j of the mask, (m,) of (m, k); 0 where there is none."""
    terms = softplus(exponent.masked_fill(~mask, -torch.inf), threshold=40)  # beyond it e^-x is no part of the number
    return terms.sum(1) / mask.sum(1).clamp(min=1)
