"""What a rule for negatives is: its options, and either a test of the nearest candidates or weights to draw by."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hardmine.options import Options
from hardmine.registry import Registry


class Rule(Options):
    """Base of all rules. needs_positive: whether candidates are compared with d_ap, the anchor's distance to its
    positive. needs_unit_norm: whether the formula holds on the unit sphere only."""

    needs_positive: ClassVar[bool] = False
    needs_unit_norm: ClassVar[bool] = False


class RankedRule(Rule):
    """Takes candidates nearest first. Which ones is said by distance (`lower`) and by rank (`ranks`)."""

    def lower(self, positive: np.ndarray) -> np.ndarray:
        """float (n,): d_an must be at least this. positive: float32 (n,), d_ap (NaN where the rule needs none)."""
        return np.full(len(positive), -np.inf)

    def ranks(self) -> tuple[int, int | None]:
        """First and last rank (from 0, both included; None: no last) among the candidates that may be negatives."""
        return 0, None

    def shuffles(self) -> bool:
        """Whether the k negatives are drawn at random from those within the ranks, not taken nearest first."""
        return False


class DrawnRule(Rule):
    """Draws among all candidates, without replacement, by weights."""

    def log_weight(self, distance: np.ndarray, candidate: np.ndarray, positive: np.ndarray, dim: int) -> np.ndarray:
        """Logarithms of unnormalised weights float64 (n, N), -inf for what must not be drawn.

        distance: float64 (n, N), d_an. candidate: bool (n, N), what may be a negative at all. positive: float64 (n,),
        d_ap. dim: D of the descriptors."""
        raise NotImplementedError(f"{type(self).__name__} does not say its weights")


rules: Registry[type[Rule]] = Registry("rule for negatives", "hardmine.mining.negative_rules")
