"""What the policy sees: validation metrics now and before, the distribution, and how far the training is.

Section 4 of the PADS paper ("state"); order and padding are the released code's. Nothing is normalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hardmine.errors import InputError, NumericalError, StoreError
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.options import PolicyOptions


@dataclass(frozen=True)
class Metrics:
    """What a validation gave. recall: R@K at each K of `recall_at`, in [0, 1]. nmi: in [0, 1]. intra, inter: see
    `ClassSpread`. A part that the options do not use may stay as it is."""

    recall: tuple[float, ...] = ()
    nmi: float = 0.0
    intra: float = 0.0
    inter: float = 0.0

    def vector(self, options: PolicyOptions) -> list[float]:
        """The parts that `options.metrics` names, in its order. Raises InputError where the recalls are not as many as
        the options say, NumericalError where a number is not finite."""
        if "recall" in options.metrics and len(self.recall) != len(options.recall_at):
            raise InputError(
                f"{len(self.recall)} recalls for the {len(options.recall_at)} values of recall_at {options.recall_at}"
            )
        parts: Mapping[str, tuple[float, ...]] = {
            "recall": self.recall,
            "dists": (self.intra, self.inter),
            "nmi": (self.nmi,),
        }
        values = [float(value) for part in options.metrics for value in parts[part]]
        if not np.isfinite(values).all():
            raise NumericalError(f"validation metrics are not finite: {self}")
        return values

    def reward_metric(self, options: PolicyOptions) -> float:
        """e_t, by `options.reward` and `options.combine`."""
        if "r1" in options.reward and not self.recall:
            raise InputError(f"the reward {options.reward!r} needs recalls, and the validation gave none")
        values = [self.recall[0]] * ("r1" in options.reward) + [self.nmi] * ("nmi" in options.reward)
        if not np.isfinite(values).all():
            raise NumericalError(f"the reward metric is not finite: {self}")
        return float(sum(values)) / (len(values) if options.combine == "mean" else 1)


@dataclass
class StateHistory:
    """The metric vectors and distributions that states are made of, as far back as needed.

    vectors: list of metric vectors, oldest first; the average over the last L <= 32 needs that many, and fewer at the
    start. padding: how many times the first one stands before them. distributions: p, oldest first."""

    options: PolicyOptions
    vectors: list[list[float]] = field(default_factory=list)
    distributions: list[list[float]] = field(default_factory=list)
    padding: int = 0

    def observe(
        self, metrics: Metrics, distribution: Distribution, progress: float, train: Metrics | None = None
    ) -> Tensor:
        """Take in what a validation gave and the distribution that was in force until now. The state, float64 (S,):

        the last H metric vectors, oldest first; for each L of `averages` the mean of the last <= L; the last
        distributions, oldest first; the progress. At the first call histories are filled with their only entry, which
        the running averages do not count again. train: the metrics on training data, where the options want them.
        """
        if (train is not None) != self.options.train_metrics:
            raise InputError(
                f"train_metrics is {self.options.train_metrics}, and metrics on training data were "
                f"{'not ' if train is None else ''}given"
            )
        if not self.vectors:
            self.padding = max(self.options.history, 2) - 1
            self.distributions = [distribution.p.tolist()] * (self.options.distributions - 1)
        vector = metrics.vector(self.options) + (train.vector(self.options) if train is not None else [])
        self.vectors.append(vector)
        self.distributions.append(distribution.p.tolist())
        history = ([self.vectors[0]] * self.padding + self.vectors)[-self.options.history :]
        averages = [np.mean(self.vectors[-length:], axis=0) for length in self.options.averages]
        seen = self.distributions[-self.options.distributions :]
        state = np.concatenate([*history, *averages, *seen, [progress]])
        self._forget()
        return torch.from_numpy(state)

    def _forget(self) -> None:
        kept = max(self.options.history, *self.options.averages, 1)
        if len(self.vectors) > kept:
            self.vectors, self.padding = self.vectors[-kept:], 0
        self.distributions = self.distributions[-self.options.distributions :]

    def tensors(self) -> dict[str, Tensor]:
        """Everything a continued run needs, for a safetensors file."""
        return {
            "vectors": torch.tensor(self.vectors, dtype=torch.float64),
            "distributions": torch.tensor(self.distributions, dtype=torch.float64),
            "padding": torch.tensor(self.padding),
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to `tensors`. Raises StoreError where they are of other options."""
        vectors = tensors["vectors"]
        if len(vectors) and vectors.shape[1] != self.options.metric_size():
            raise StoreError(
                f"the saved metric vectors have {vectors.shape[1]} numbers, these options make "
                f"{self.options.metric_size()}: continue with the options of the saved run"
            )
        self.vectors, self.padding = vectors.tolist(), int(tensors["padding"])
        self.distributions = tensors["distributions"].tolist()
