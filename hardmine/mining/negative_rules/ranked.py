"""Nearest-first rules: the nearest, a window of ranks, and those that keep a margin to the positive."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from hardmine.mining.negative_rules.base import RankedRule, rules


@rules.register("nearest")
class Nearest(RankedRule):
    """The k nearest items of other classes."""


@rules.register("rank-window")
class RankWindow(RankedRule):
    """k of the candidates of rank first..last (0 is the nearest; both included): the nearest of them, or drawn evenly
    ("random"). Leaving out the first ranks leaves out likely false negatives."""

    first: int = Field(0, ge=0)
    last: int = Field(ge=0)
    pick: Literal["nearest", "random"] = "nearest"

    @model_validator(mode="after")
    def _in_order(self) -> RankWindow:
        if self.last < self.first:
            raise ValueError(f"last ({self.last}) is before first ({self.first})")
        return self

    def ranks(self) -> tuple[int, int | None]:
        """See `RankedRule.ranks`."""
        return self.first, self.last

    def shuffles(self) -> bool:
        """See `RankedRule.shuffles`."""
        return self.pick == "random"


@rules.register("absolute-margin")
class AbsoluteMargin(RankedRule):
    """The nearest with d_an >= d_ap + margin."""

    needs_positive = True

    margin: float = Field(0.1, allow_inf_nan=False)

    def lower(self, positive: np.ndarray) -> np.ndarray:
        """See `RankedRule.lower`."""
        return positive.astype(np.float64) + self.margin


@rules.register("relative-margin")
class RelativeMargin(RankedRule):
    """The nearest with d_an >= (1 + margin) d_ap."""

    needs_positive = True

    margin: float = Field(0.05, gt=-1, allow_inf_nan=False)

    def lower(self, positive: np.ndarray) -> np.ndarray:
        """See `RankedRule.lower`."""
        return positive.astype(np.float64) * (1 + self.margin)
