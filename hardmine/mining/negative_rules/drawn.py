"""Drawing rules: semi-hard, distance-weighted, and PADS' distribution over bins of the distance.

Schroff et al., "FaceNet", CVPR 2015 (semi-hard); Wu et al., "Sampling matters in deep embedding learning", ICCV 2017
(distance-weighted); Roth et al., "PADS: policy-adapted sampling for visual similarity learning", CVPR 2020.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from hardmine.mining.density import log_inverse_density
from hardmine.mining.negative_rules.base import DrawnRule, rules
from hardmine.mining.pads.support import Support


@rules.register("semi-hard")
class SemiHard(DrawnRule):
    """Evenly among the candidates with d_ap < d_an < d_ap + margin (plain distances, both strict)."""

    needs_positive = True

    margin: float = Field(0.2, gt=0, allow_inf_nan=False)

    def log_weight(self, distance: np.ndarray, candidate: np.ndarray, positive: np.ndarray, dim: int) -> np.ndarray:
        """See `DrawnRule.log_weight`."""
        d_ap = positive[:, None]
        return np.where(candidate & (distance > d_ap) & (distance < d_ap + self.margin), 0.0, -np.inf)


@rules.register("distance-weighted")
class DistanceWeighted(DrawnRule):
    """In inverse proportion to the density q(d) of distances on the unit sphere, d^(D - 2) (1 - d^2 / 4)^((D - 3) / 2).

    floor: smaller distances count as this one. cutoff: farther items are not drawn (the published code has none)."""

    needs_unit_norm = True

    floor: float = Field(0.5, gt=0, lt=2)
    cutoff: float | None = Field(None, gt=0)

    def log_weight(self, distance: np.ndarray, candidate: np.ndarray, positive: np.ndarray, dim: int) -> np.ndarray:
        """See `DrawnRule.log_weight`."""
        log_w = log_inverse_density(torch.from_numpy(distance), dim, self.floor).numpy()
        if self.cutoff is not None:
            candidate = candidate & (distance <= self.cutoff)
        return np.where(candidate, log_w, -np.inf)


@rules.register("pads-bins")
class PadsBins(DrawnRule):
    """By a distribution over bins of the distance.

    support: smallest and largest distance of the grid e_0..e_(n-1). p: unnormalised weights of its n - 1 bins. A
    distance falls into bin #{j in 1..n-2: d > e_j}: what lies outside the grid belongs to the end bins (register A1).
    draw (register A2): "member", the weight of a bin goes to each of its candidates (the released code), or "bin", it
    is shared by them, so that bin k is drawn with probability p_k among those with candidates (the paper's text). For
    k > 1 negatives of one anchor this holds for the first one; what is drawn does not come back."""

    support: tuple[float, float] = (0.1, 1.4)
    p: tuple[float, ...] = Field(min_length=2)
    draw: Literal["member", "bin"] = "member"

    @model_validator(mode="after")
    def _is_a_distribution(self) -> PadsBins:
        if not self.support[0] < self.support[1]:
            raise ValueError(f"support {self.support} is not an interval")
        if not all(0 <= weight < np.inf for weight in self.p) or not any(self.p):
            raise ValueError("p must be finite, not negative, and not all 0")
        return self

    def bins(self, distance: np.ndarray) -> np.ndarray:
        """int64, shaped as distance: number of the bin of each."""
        support = Support(low=self.support[0], high=self.support[1], n_support=len(self.p) + 1)
        return support.bin_of(torch.from_numpy(distance)).numpy()

    def log_weight(self, distance: np.ndarray, candidate: np.ndarray, positive: np.ndarray, dim: int) -> np.ndarray:
        """See `DrawnRule.log_weight`."""
        weight, number = np.asarray(self.p, np.float64), self.bins(distance)
        with np.errstate(divide="ignore"):
            log_p = np.log(weight / weight.max())
        log_w = log_p[number]
        if self.draw == "bin":
            line = np.arange(len(distance))[:, None] * len(weight) + number
            members = np.bincount(line[candidate], minlength=len(distance) * len(weight))
            log_w = log_w - np.log(np.maximum(members[line], 1))
        return np.where(candidate, log_w, -np.inf)
