"""The grid that distances are counted on: edges, bins, and what lies outside.

Section 4 of the PADS paper.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from hardmine.options import Options


class Support(Options):
    """n_support edges e_0..e_(n-1), evenly from `low` to `high`, with n - 1 bins between them.

    n_support (register A3): 30 edges make 29 bins, as the released code has; 31 make the 30 of the paper's text.
    oob (A1): distances outside the grid belong to the end bins ("merge": what the released code does), or those below
    do and those above are not drawn ("clip_low"), or neither is drawn ("zero").
    """

    low: float = Field(0.1, allow_inf_nan=False)
    high: float = Field(1.4, allow_inf_nan=False)
    n_support: int = Field(30, ge=3)
    oob: Literal["merge", "clip_low", "zero"] = "merge"

    @model_validator(mode="after")
    def _is_an_interval(self) -> Support:
        if not self.low < self.high:
            raise ValueError(f"the grid of distances goes from {self.low} to {self.high}: low must be below high")
        return self

    @property
    def bins(self) -> int:
        """Number of bins, n - 1."""
        return self.n_support - 1

    def edges(self) -> np.ndarray:
        """float64 (n_support,)."""
        return np.linspace(self.low, self.high, self.n_support)

    def bin_of(self, distance: Tensor) -> Tensor:
        """Bin #{j in 1..n-2 : d > e_j} of each distance, int64, shaped as `distance`; -1 where `oob` leaves it out.

        Compared in float64. NaN is in the last bin."""
        inner = torch.from_numpy(self.edges()[1:-1]).to(distance.device)
        distance = distance.double().contiguous()
        number = torch.bucketize(distance, inner)
        if self.oob != "merge":
            number = number.masked_fill(distance > self.high, -1)
        if self.oob == "zero":
            number = number.masked_fill(distance < self.low, -1)
        return number
