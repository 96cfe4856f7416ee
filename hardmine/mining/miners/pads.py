"""PADS: negatives by a distribution over distances that a policy adapts during the training.

Roth et al., "PADS: policy-adapted sampling for visual similarity learning", CVPR 2020; see `hardmine.mining.pads`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.miners.base import Tuples, miners
from hardmine.mining.pads.distribution import Distribution, Initial
from hardmine.mining.pads.drawing import Draw, draw_triplets
from hardmine.mining.pads.files import load_distribution
from hardmine.mining.pads.support import Support
from hardmine.options import Options


@miners.register("pads")
class PadsMiner(Options):
    """For every row one triplet, by `draw_triplets` and the distribution that `use` was given last.

    low, high, n_support, oob: the grid, see `Support`. initial: the distribution at the start, a preset
    (`pads.distribution.PRESETS`) or an `Initial`. saved: a file to take it from instead, a saved distribution or
    policy, on the same grid. draw: "member" (released) or "bin" (the paper's text), see `log_weights`.
    self_regularisation: on as published, see `draw_triplets`. Where nobody calls `use` the distribution stays as it is:
    the experiments with a fixed one.
    """

    needs_drawn: ClassVar[bool] = False
    low: float = Support.model_fields["low"].default
    high: float = Support.model_fields["high"].default
    n_support: int = Support.model_fields["n_support"].default
    oob: Literal["merge", "clip_low", "zero"] = "merge"
    initial: str | Initial = "uniform_low"
    saved: str | None = Field(None, min_length=1)
    draw: Draw = "member"
    self_regularisation: bool = True
    _distribution: Distribution = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Make the distribution of the start. Raises InputError, MissingError, UnknownNameError."""
        super().model_post_init(context)
        support = Support(low=self.low, high=self.high, n_support=self.n_support, oob=self.oob)
        self._distribution = Distribution.starting(support, self.initial)
        if self.saved is not None:
            self.use(load_distribution(self.saved))

    @property
    def distribution(self) -> Distribution:
        """The one that triplets are drawn by now."""
        return self._distribution

    def use(self, distribution: Distribution) -> None:
        """Draw by this one from now on. Raises InputError where it is on another grid."""
        if distribution.support != self._distribution.support:
            raise InputError(
                f"the new distribution is on the grid {distribution.support!r}, this miner on "
                f"{self._distribution.support!r}: give the miner the options of the run that it comes from"
            )
        self._distribution = distribution

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tuples:
        """See `Miner`."""
        return draw_triplets(batch, self._distribution, self.draw, self.self_regularisation)
