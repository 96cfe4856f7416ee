"""Curricula: negatives that get harder on a schedule fixed in advance, as baselines of a learned one.

Roth et al., "PADS: policy-adapted sampling for visual similarity learning", CVPR 2020, name two and give their courses
in figures only. The schedules are ours (register A5); progress tau goes from 0 to 1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.density import log_inverse_density
from hardmine.mining.draws import draw, draw_even
from hardmine.mining.miners.base import Tuples, miners
from hardmine.mining.relations import Relations
from hardmine.mining.staged import Elapsed
from hardmine.options import Options


class _Curriculum(Options):
    """For every row a positive drawn evenly, and a negative by `weight`. fallback: where the weights of all negatives
    are 0, any negative ("random") or no tuple ("skip")."""

    needs_drawn: ClassVar[bool] = False
    fallback: Literal["random", "skip"] = "random"
    _progress: float = PrivateAttr(default=0.0)

    def advance(self, elapsed: Elapsed) -> None:
        """See `Staged.advance`; before the first call it is the start of the run."""
        self._progress = elapsed.fraction

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tuples:
        """See `Miner`; as at the progress that `advance` was told."""
        relations, generator = Relations(batch), batch.generator
        positive = draw_even(relations.positive, generator)
        weight = self.weight(relations.distance, relations.negative, batch.descriptors.shape[1])
        negative = draw(weight.log(), generator)
        if self.fallback == "random":
            negative = torch.where(negative < 0, draw_even(relations.negative, generator), negative)
        return relations.tuples(positive, negative)

    def weight(self, distance: Tensor, candidate: Tensor, dim: int) -> Tensor:
        """Weights float64 (r, r), 0 for what is no candidate. distance (r, r), candidate bool (r, r), dim: D."""
        raise NotImplementedError(f"{type(self).__name__} does not say its weights")


@miners.register("linear-curriculum")
class LinearCurriculum(_Curriculum):
    """Evenly among the negatives with |d(a, n) - c| <= width / 2, where the centre c goes linearly from `start` (with
    the width of 0.4: [0.3, 0.7], semi-hard) to `end`."""

    start: float = Field(0.5, ge=0, le=2)
    end: float = Field(0.3, ge=0, le=2)
    width: float = Field(0.4, gt=0, le=4)

    def weight(self, distance: Tensor, candidate: Tensor, dim: int) -> Tensor:
        """See `_Curriculum.weight`."""
        centre = self.start + self._progress * (self.end - self.start)
        return (candidate & ((distance.double() - centre).abs() <= self.width / 2)).double()


@miners.register("nonlinear-curriculum")
class NonLinearCurriculum(_Curriculum):
    """(1 - tau^2) w_U(d) + tau^2 w_W(d): from distance-weighted negatives to those whose distance is in `window`.

    w_U is `distance-weighted` with its `floor`, w_W even in the window; each is normalised over an anchor's candidates.
    Where none is in the window, w_W is 0."""

    window: tuple[float, float] = (0.1, 0.5)
    floor: float = Field(0.5, gt=0, lt=2)

    @model_validator(mode="after")
    def _is_an_interval(self) -> NonLinearCurriculum:
        if not 0 <= self.window[0] < self.window[1]:
            raise ValueError(f"window {self.window} is not an interval of distances")
        return self

    def weight(self, distance: Tensor, candidate: Tensor, dim: int) -> Tensor:
        """See `_Curriculum.weight`."""
        low, high = self.window
        within = (candidate & (distance >= low) & (distance <= high)).double()
        log_spread = log_inverse_density(distance, dim, self.floor).masked_fill(~candidate, -torch.inf)
        spread = torch.softmax(log_spread, dim=1).where(candidate, 0.0)  # a line without candidates is NaN before
        hard = within / within.sum(1, keepdim=True).clamp(min=1)
        return (1 - self._progress**2) * spread + self._progress**2 * hard
