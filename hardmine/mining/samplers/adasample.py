"""AdaSample: positives drawn by their distance, the harder the likelier as the loss falls, weighted against the bias.

Algorithm 1 and Eq. 13 of the AdaSample paper: p_i proportional to d(x_i, x_i0)^(lambda / L_avg), w_i proportional to
1 / d(x_i, x_i0), where L_avg is a running average of the unweighted loss.
"""

from __future__ import annotations

from typing import Any, Literal, SupportsFloat

import numpy as np
from pydantic import Field, model_validator

from hardmine.mining.lagged import LaggedAverage
from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.hardpos import farthest
from hardmine.mining.samplers.pairs import PairSampler, uniform_other
from hardmine.options import Options

_LOSS_FLOOR = 1e-3  # specs 4.5: lambda / L_avg stays finite
_DISTANCE_FLOOR = 1e-6  # specs 4.5: ln d stays finite; d all zero gives the uniform distribution
_LARGEST_LOG = 600.0  # e to it, summed over a batch, is finite in float64


class AdaSampleOptions(Options):
    """lam: lambda of Eq. 13; 0 gives the plans of `random` (HardNet) and inf those of `hardpos`, bit for bit.
    exponent: a fixed exponent in place of lambda / L_avg (2 alpha - 1 of Eq. 7 and 12). descriptors: 'store' reads the
    distances of the last mining round; 'online' is Algorithm 1 to the letter (all entries of the drawn classes embedded
    at each step). distance: 'euclidean', or 'angle' (arccos, the distance of the AHT loss). weights: with mean 1 over
    the batch, 'inverse-distance' (Eq. 13), 'with-normaliser' (the same times the normaliser of p, which Eq. 13 leaves
    out: the exact w of Eq. 9 where L = d^2; ours), or 'none'. max_weight: largest weight, in units of the batch's
    median, so that one pair of near-identical patches does not silence the rest of its batch (ours; inf: Eq. 13 to the
    letter). momentum, initial_loss: of L_avg (register A8)."""

    lam: float = Field(10.0, ge=0)
    exponent: float | None = Field(None, ge=0)
    descriptors: Literal["store", "online"] = "store"
    distance: Literal["euclidean", "angle"] = "euclidean"
    weights: Literal["inverse-distance", "with-normaliser", "none"] = "inverse-distance"
    max_weight: float = Field(10.0, gt=1)
    momentum: float = Field(0.9, ge=0, lt=1)
    initial_loss: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _nothing_is_without_effect(self) -> AdaSampleOptions:
        if self.exponent is not None and "lam" in self.model_fields_set:
            raise ValueError(
                "give either lam (the exponent is lam / L_avg) or a fixed exponent, not both; in place of a recipe's "
                "lam: --set \"sampler={name='adasample', exponent=3}\""
            )
        idle = {"momentum", "initial_loss"} & self.model_fields_set if self.exponent is not None else set()
        if idle:
            raise ValueError(f"{min(idle)} is of L_avg, which a fixed exponent does not look at: leave it out")
        if self.weights == "none" and "max_weight" in self.model_fields_set:
            raise ValueError('max_weight caps a weight, and weights = "none" has none: leave it out')
        return self


@samplers.register("adasample")
class AdaSample(PairSampler):
    """See the module's first lines; options in `AdaSampleOptions`."""

    Options = AdaSampleOptions
    options: AdaSampleOptions
    needs_distances = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.average_loss = LaggedAverage(self.options.momentum, self.options.initial_loss, self.lag)
        self.needs_distances = self.exponent(0) != 0  # 0 stays 0, whatever the loss

    def exponent(self, step: int) -> float:
        """The exponent of the distance at `step`: fixed, or lambda / L_avg."""
        if self.options.exponent is not None:
            return self.options.exponent
        return self.options.lam / max(self.average_loss.at(step), _LOSS_FLOOR)

    def choose_positive(
        self, step: int, classes: np.ndarray, size: np.ndarray, anchor: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `PairSampler.choose_positive`."""
        exponent = self.exponent(step)
        if exponent == 0:
            return uniform_other(size, anchor, rng), np.ones(len(size))
        assert self.distances is not None  # `plan` has checked
        distance = self.distances.from_anchor(classes, anchor).astype(np.float64)
        if np.isinf(exponent):
            return farthest(distance), np.ones(len(size))
        if self.options.distance == "angle":
            distance = 2 * np.arcsin(np.minimum(distance / 2, 1))
        p = probabilities(distance, exponent)
        cumulative = np.cumsum(p, axis=1)
        total = cumulative[:, -1]
        u = rng.random(len(size))
        drawn = np.minimum(u * total, np.nextafter(total, 0))  # never past the last candidate, however u rounds
        positive = (cumulative <= drawn[:, None]).sum(1)
        chosen = np.arange(len(size)), positive
        if self.options.weights == "none":
            return positive, np.ones(len(size))
        if self.options.weights == "with-normaliser":
            return positive, normalised_weights(distance[chosen], p[chosen], exponent, self.options.max_weight)
        return positive, inverse_distance_weights(distance[chosen], self.options.max_weight)

    def record(self, step: int, loss: SupportsFloat) -> None:
        """See `Sampler.record`."""
        self.average_loss.record(step, loss)

    def state(self, step: int) -> dict[str, Any]:
        """See `Sampler.state`."""
        return self.average_loss.state(step)

    def load(self, state: dict[str, Any]) -> None:
        """See `Sampler.load`."""
        self.average_loss.load(state)

    def scalars(self, step: int) -> dict[str, float]:
        """The exponent of `step`, and L_avg."""
        return {"exponent": self.exponent(step), "average_loss": self.average_loss.at(step)}


def probabilities(distance: np.ndarray, exponent: float) -> np.ndarray:
    """p proportional to distance ** exponent in each row, float64 (n, k), in log space; 0 where distance is NaN.

    A row of equal distances (all zero, too) is uniform over its candidates.
    """
    valid = ~np.isnan(distance)
    logit = np.where(valid, exponent * np.log(np.maximum(np.where(valid, distance, 1), _DISTANCE_FLOOR)), -np.inf)
    p = np.exp(logit - logit.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def inverse_distance_weights(distance: np.ndarray, max_weight: float) -> np.ndarray:
    """w proportional to 1 / distance (Eq. 13), float64 (n,), with mean 1; clipped at `max_weight` x its median."""
    return _with_mean_1(1 / np.maximum(distance, _DISTANCE_FLOOR), max_weight)


def normalised_weights(distance: np.ndarray, p: np.ndarray, exponent: float, max_weight: float) -> np.ndarray:
    """w proportional to distance^(exponent - 1) / p, float64 (n,), with mean 1, clipped likewise.

    That is Z / distance with the class's own Z = sum_j d_j^exponent, and the exact alpha L^(alpha - 1) / (K p) of Eq. 9
    where L = d^2 and exponent = 2 alpha - 1. p: the probability with which each pair was drawn.
    """
    logarithm = (exponent - 1) * np.log(np.maximum(distance, _DISTANCE_FLOOR)) - np.log(p)
    return _with_mean_1(np.exp(np.minimum(logarithm - np.median(logarithm), _LARGEST_LOG)), max_weight)


def _with_mean_1(weight: np.ndarray, max_weight: float) -> np.ndarray:
    weight = np.minimum(weight, max_weight * np.median(weight))
    return weight / weight.mean()
