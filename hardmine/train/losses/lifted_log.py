"""The lifted structured loss as DSDML writes it: on similarities, without hinge or square (`lifted` is Song's own).

DSDML, Eq. 5 and 9.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from hardmine.train.losses.base import losses
from hardmine.train.losses.dynamic_sampling import DynamicSampling, Pairs, log_sum


@losses.register("lifted-log")
class LiftedLog(DynamicSampling):
    """loss_i = log(sum over P_i of e^(lam - s)) + log(sum over N_i of e^s).

    The dynamic terms are added to the exponents. It may be negative. Options beside lam in `DynamicSampling`."""

    lam: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)

    def loss(self, pairs: Pairs, omega: float) -> Tensor:
        """See `DynamicSampling.loss`."""
        near, far = self.lam - pairs.p, pairs.similarity
        if omega:
            near, far = near + self.near(pairs.p, omega), far + self.far(far, omega)
        return log_sum(near, pairs.positive) + log_sum(far, pairs.negative)
