"""The options of the policy: what it sees, how it acts, how it learns and when."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from hardmine.options import Options

Part = Literal["recall", "dists", "nmi"]


class PolicyOptions(Options):
    """The defaults are the paper's, which the released sample runs share; `RELEASED_DEFAULTS` are those of the released
    program where a run gives none.

    Schedule. every: M, optimiser steps between two calls (30 on CUB and CARS, 60 on SOP). delay: steps before the count
    starts.
    State. history: H, metric vectors that the policy sees. averages: lengths of the running averages. distributions:
    how many of the last distributions it sees. metrics: parts of a metric vector, in order. recall_at: K of its recalls
    (SOP: 1, 10, 100, 1000); only their number matters here. train_metrics: the vector holds the same metrics on
    training data as well.
    Reward. reward: what must grow, "r1" (recall at the first K), "nmi", or both. combine: "mean" of the two (released)
    or "sum" (the paper's formula); only the value target feels the difference.
    Action. actions: the multipliers (alpha, 1, beta) of a bin's weight.
    Learning. method: "ppo" or "reinforce". baseline: "a2c", a learned value, or "ema", the running average of past
    rewards. clip: of PPO's ratio. discount: of the next value. ema: weight of a new reward in the running average.
    value_target: what the value is fitted to, the reward's metric ("metric", released) or r + discount V(s') ("td").
    value_weight: of that fit in the loss. old_policy_every: calls after which PPO's old policy is renewed. lr: of Adam.
    hidden: width of the two layers. init: of their weights, "default" (torch's) or "he_normal".
    learn: off, the policy acts and does not change. policy: a saved policy to start from (the transfer experiments).
    """

    every: int = Field(30, ge=1)
    delay: int = Field(0, ge=0)
    history: int = Field(20, ge=1)
    averages: tuple[int, ...] = (2, 8, 16, 32)
    distributions: int = Field(1, ge=1)
    metrics: tuple[Part, ...] = Field(("recall", "dists", "nmi"), min_length=1)
    recall_at: tuple[int, ...] = Field((1, 2, 4, 8), min_length=1)
    train_metrics: bool = False
    reward: Literal["r1", "nmi", "r1+nmi"] = "r1+nmi"
    combine: Literal["mean", "sum"] = "mean"
    actions: tuple[float, float, float] = (0.8, 1.0, 1.25)
    method: Literal["ppo", "reinforce"] = "ppo"
    baseline: Literal["a2c", "ema"] = "a2c"
    clip: float = Field(0.2, gt=0, lt=1)
    discount: float = Field(0.99, ge=0, le=1)
    ema: float = Field(0.05, gt=0, le=1)
    value_target: Literal["metric", "td"] = "metric"
    value_weight: float = Field(0.5, ge=0, allow_inf_nan=False)
    old_policy_every: int = Field(5, ge=1)
    lr: float = Field(0.01, gt=0, allow_inf_nan=False)
    hidden: int = Field(128, ge=1)
    init: Literal["default", "he_normal"] = "default"
    learn: bool = True
    policy: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> PolicyOptions:
        if any(length < 1 for length in self.averages):
            raise ValueError(f"averages {self.averages}: a running average is of one metric vector or more")
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError(f"metrics {self.metrics}: each part once")
        if not all(0 < action < float("inf") for action in self.actions):
            raise ValueError(f"actions {self.actions} must be positive and finite")
        return self

    def metric_size(self) -> int:
        """Numbers in a metric vector."""
        sizes = {"recall": len(self.recall_at), "dists": 2, "nmi": 1}
        return sum(sizes[part] for part in self.metrics) * (2 if self.train_metrics else 1)

    def state_size(self, bins: int) -> int:
        """S: (H + averages) metric vectors, the last distributions over `bins` bins, and the progress."""
        return (self.history + len(self.averages)) * self.metric_size() + bins * self.distributions + 1


# What the released program does when its options are not given; all its sample runs give others
RELEASED_DEFAULTS: dict[str, Any] = {
    "actions": (0.5, 1.0, 1.5),
    "history": 10,
    "old_policy_every": 3,
    "metrics": ("recall", "nmi", "dists"),
}
