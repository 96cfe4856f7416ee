"""PADS at work: called every M steps with fresh validation metrics, it answers with the distribution to draw by.

Algorithm 1 of the PADS paper; schedule and order of operations as in the released code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hardmine.errors import StoreError
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.files import load_policy, save_policy
from hardmine.mining.pads.history import History
from hardmine.mining.pads.learner import Learner
from hardmine.mining.pads.options import PolicyOptions
from hardmine.mining.pads.policy import Policy, choose
from hardmine.mining.pads.state import Metrics, StateHistory
from hardmine.mining.pads.update import reward


class Pads:
    """The policy of a run with all it remembers. After each optimiser step the loop does

        if pads.due(step):  # step: optimiser steps done
            miner.use(pads.observe(step, validate(network)))

    distribution: where it starts. total_steps: of the run, for the state's progress. seed: of the policy's initial
    weights and of its actions; torch's global generators are neither read nor moved. `state_dict` holds everything that
    a run needs to go on to the bit. Raises InputError where `options.policy` names a policy that does not fit.
    """

    def __init__(self, options: PolicyOptions, distribution: Distribution, *, total_steps: int, seed: int = 0):
        self.options, self.distribution, self.total_steps = options, distribution, total_steps
        bins = distribution.support.bins
        policy = Policy(
            options.state_size(bins),
            bins,
            actions=len(options.actions),
            hidden=options.hidden,
            value=options.baseline == "a2c",
            init=options.init,
            seed=seed,
        )
        if options.policy is not None:
            load_policy(options.policy).into(policy, **self._about())
        self.learner = Learner(policy, options)
        self.seen = StateHistory(options)
        self.history = History.starting(distribution.support.edges(), distribution.p)
        self.generator = torch.Generator().manual_seed(seed)
        self.calls = 0
        self._metric = 0.0  # e_(t-1)
        self._last: tuple[Tensor, Tensor] | None = None  # s_(t-1) and a_(t-1)

    def due(self, step: int) -> bool:
        """Whether the policy is called after optimiser step `step`, counted from 1: at M + 1 and every M from there,
        all of it `delay` steps later."""
        since = step - self.options.delay - 1
        return since > 0 and since % self.options.every == 0

    def observe(self, step: int, metrics: Metrics, train: Metrics | None = None) -> Distribution:
        """Learn from what came of the last action, act, and return the new distribution.

        metrics: of the weights after `step` on held-out data. train: on training data, where the options want them.
        The first call only acts. Raises InputError, NumericalError where metrics do not fit or are not finite, and
        StoreError where no call is due after `step`, or that one was made already.
        """
        if not self.due(step) or step <= self.history.step[-1]:
            raise StoreError(
                f"the policy was called after step {step}; it is called every {self.options.every} steps from step "
                f"{self.options.delay + self.options.every + 1} on, and was last after step {self.history.step[-1]}"
            )
        metric = metrics.reward_metric(self.options)
        state = self.seen.observe(metrics, self.distribution, step / self.total_steps, train)
        gained = 0
        if self._last is not None:
            gained = reward(metric, self._metric)
            if self.options.learn:
                self.learner.learn(*self._last, gained, metric, state)
                if self.calls > 1 and self.calls % self.options.old_policy_every == 0:
                    self.learner.renew_old()
        with torch.no_grad():
            action = choose(self.learner.policy(state)[0], self.generator)
        self.distribution = self.distribution.times(np.array(self.options.actions)[action.numpy()])
        self._metric, self._last = metric, (state, action)
        self.calls += 1
        self.history.append(step, self.distribution.p, metric, gained)
        return self.distribution

    def save_policy(self, path: str | Path) -> None:
        """Write the policy as it is now; see `files`. Raises DiskError."""
        save_policy(path, self.learner.policy, self.distribution, **self._about(), options=self._options())

    def _about(self) -> dict[str, object]:
        options = self._options()
        return {"actions": options["actions"], "metrics": options["metrics"]}

    def _options(self) -> dict[str, object]:
        return self.options.model_dump(mode="json")

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a continued run needs, as tensors on the CPU that a safetensors file can hold; copies."""
        found = {f"learner.{name}": value for name, value in self.learner.tensors().items()}
        found |= {f"seen.{name}": value for name, value in self.seen.tensors().items()}
        found |= {f"history.{name}": torch.from_numpy(value.copy()) for name, value in self.history.arrays().items()}
        found["q"] = torch.tensor(self.distribution.q, dtype=torch.float64)
        found["calls"] = torch.tensor(self.calls)
        found["metric"] = torch.tensor(self._metric, dtype=torch.float64)
        found["generator"] = self.generator.get_state()
        if self._last is not None:
            found["last.state"], found["last.action"] = (value.clone() for value in self._last)
        return found

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to a `state_dict`. Raises StoreError where it is of other options."""
        parts: dict[str, dict[str, Tensor]] = {"learner": {}, "seen": {}, "history": {}, "last": {}}
        for name, value in tensors.items():
            part, dot, rest = name.partition(".")
            if dot:
                parts[part][rest] = value
        support = self.distribution.support
        edges = parts["history"]["edges"].numpy()
        if not np.array_equal(edges, support.edges()):
            raise StoreError(
                f"the saved distribution has {len(edges) - 1} bins from {edges[0]:g} to {edges[-1]:g}, this run "
                f"{support.bins} from {support.low:g} to {support.high:g}: continue with the saved run's options"
            )
        self.seen.load(parts["seen"])
        self.learner.load(parts["learner"])
        self.history = History(**{name: value.numpy().copy() for name, value in parts["history"].items()})
        self.distribution = Distribution(support, tuple(tensors["q"].tolist()))
        self.calls, self._metric = int(tensors["calls"]), float(tensors["metric"])
        self.generator.set_state(tensors["generator"].cpu())
        self._last = (parts["last"]["state"], parts["last"]["action"]) if parts["last"] else None
