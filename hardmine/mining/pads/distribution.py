"""How often negatives of which distance are wanted: the distribution that PADS adapts, and where it starts.

Eq. 3 and section 5 of the PADS paper; the presets are those of the released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.pads.support import Support
from hardmine.options import Options

_LEAST, _MOST = 1e-25, 1e25  # of an unnormalised weight after an update
_FLOOR = 1e-15  # of an initial weight before it is normalised


class Initial(Options):
    """Weights at x_k = e_k + 2 / n_support, k = 0..n-2, clipped to [1e-15, 1] and normalised.

    shape: "random", 1; "uniform", 1 where |x - mu| <= sigma; "gaussian", exp(-(x - mu)^2 / (2 sigma^2)) /
    sqrt(2 pi sigma); "heavyside", 1 where x <= mu; "distance", 1 where x < 0.5. mu and sigma are distances.
    (x_k and the root over sigma are those of the released code; 2 / n is not half a bin, and a peak above 1 is cut.)
    """

    shape: Literal["random", "uniform", "gaussian", "heavyside", "distance"]
    mu: float = Field(0.5, allow_inf_nan=False)
    sigma: float = Field(0.2, gt=0, allow_inf_nan=False)

    def weights(self, support: Support) -> np.ndarray:
        """float64 (bins,), of sum 1."""
        x = support.edges()[:-1] + 2 / support.n_support
        if self.shape == "random":
            value = np.ones(len(x))
        elif self.shape == "uniform":
            value = ((x >= self.mu - self.sigma) & (x <= self.mu + self.sigma)).astype(np.float64)
        elif self.shape == "gaussian":
            value = np.exp(-((x - self.mu) ** 2) / (2 * self.sigma**2)) / np.sqrt(2 * np.pi * self.sigma)
        else:
            value = (x <= self.mu if self.shape == "heavyside" else x < 0.5).astype(np.float64)
        value = np.clip(value, _FLOOR, 1)
        return value / value.sum()


PRESETS = {
    "random": Initial(shape="random"),
    "uniform_low": Initial(shape="uniform", mu=0.5, sigma=0.2),  # the default, the paper's U[0.3, 0.7]
    "uniform_avg": Initial(shape="uniform", mu=1.0, sigma=0.2),
    "uniform_high": Initial(shape="uniform", mu=1.5, sigma=0.2),
    "uniform_low_and_tight": Initial(shape="uniform", mu=0.4, sigma=0.1),
    "uniform_lowish_and_tight": Initial(shape="uniform", mu=0.6, sigma=0.1),
    "normal_low": Initial(shape="gaussian", mu=0.5, sigma=0.05),  # the paper's N(0.5, 0.05)
    "normal_avg": Initial(shape="gaussian", mu=1.1, sigma=0.04),
    "normal_high": Initial(shape="gaussian", mu=1.6, sigma=0.04),
}


@dataclass(frozen=True)
class Distribution:
    """A distribution over the bins of a grid. q: its unnormalised weights, one per bin; they are not normalised between
    updates. Raises InputError where they do not fit the grid, or are not finite, negative, or all 0."""

    support: Support
    q: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.q) != self.support.bins:
            raise InputError(f"{len(self.q)} weights for a grid of {self.support.bins} bins")
        if not all(0 <= weight < np.inf for weight in self.q) or not any(self.q):
            raise InputError("the weights of a distribution over distances must be finite, not negative, and not all 0")

    @classmethod
    def starting(cls, support: Support, initial: str | Initial = "uniform_low") -> Distribution:
        """The distribution of a preset or of a shape. Raises UnknownNameError for a preset that does not exist."""
        if isinstance(initial, str):
            if initial not in PRESETS:
                raise UnknownNameError("initial distribution", initial, PRESETS)
            initial = PRESETS[initial]
        return cls(support, tuple(initial.weights(support).tolist()))

    @property
    def p(self) -> np.ndarray:
        """The probabilities q / sum q, float64 (bins,)."""
        q = np.array(self.q)
        return q / q.sum()

    def times(self, multipliers: Sequence[float] | np.ndarray) -> Distribution:
        """q <- clip(q * multipliers, 1e-25, 1e25): the update by a policy's action. multipliers: (bins,)."""
        q = np.clip(np.array(self.q) * np.asarray(multipliers, np.float64), _LEAST, _MOST)
        return Distribution(self.support, tuple(q.tolist()))

    def json(self) -> dict[str, Any]:
        """The grid and the weights as a JSON object."""
        return {"support": self.support.model_dump(mode="json"), "q": list(self.q)}
