"""One step of learning: the policy, its old self, their optimiser and the baseline.

Section 4 of the PADS paper; order of operations as in the released code.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from hardmine.errors import StoreError
from hardmine.mining.pads.options import PolicyOptions
from hardmine.mining.pads.policy import Policy, log_of_chosen
from hardmine.mining.pads.update import RewardAverage, ppo_loss, reinforce_loss, td_target


class Learner:
    """A policy that learns by Adam, without weight decay, clipping of gradients or entropy bonus."""

    def __init__(self, policy: Policy, options: PolicyOptions):
        self.policy, self.options = policy, options
        self.old = copy.deepcopy(policy)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=options.lr)
        self.average = RewardAverage(options.ema)

    def learn(self, state: Tensor, action: Tensor, reward: float, metric: float, next_state: Tensor) -> float:
        """One gradient step on what came of `action` in `state`; the loss before it.

        state, next_state: float (S,), s_(t-1) and s_t. action: int64 (bins,). reward: r_t. metric: e_t."""
        loss = self.loss(state, action, reward, metric, next_state)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def loss(self, state: Tensor, action: Tensor, reward: float, metric: float, next_state: Tensor) -> Tensor:
        """L_pi + value_weight (V(s_(t-1)) - target)^2, a scalar; without a critic L_pi alone. With baseline "ema" the
        reward enters the running average."""
        options = self.options
        log_probability, value = self.policy(state)
        chosen = log_of_chosen(log_probability, action)
        with torch.no_grad():
            target = td_target(reward, self.policy(next_state)[1], options.discount)
            old = log_of_chosen(self.old(state)[0], action)
        advantage: Tensor | float
        if options.baseline == "a2c":
            advantage = target - value.detach()
        else:
            advantage = self.average.advantage(reward)
        if options.method == "ppo":
            loss = ppo_loss(chosen, old, advantage, options.clip)
        else:
            loss = reinforce_loss(chosen, advantage)
        if options.baseline == "a2c":
            fitted = torch.full_like(value, metric) if options.value_target == "metric" else target
            loss = loss + options.value_weight * mse_loss(value, fitted)
        return loss

    def renew_old(self) -> None:
        """The old policy becomes the present one."""
        self.old.load_state_dict(self.policy.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """Policy, old policy, Adam's moments and the running average, for a safetensors file; copies."""
        found = {f"policy.{name}": value.clone() for name, value in self.policy.state_dict().items()}
        found |= {f"old.{name}": value.clone() for name, value in self.old.state_dict().items()}
        names = [name for name, _ in self.policy.named_parameters()]
        for i, moments in self.optimizer.state_dict()["state"].items():
            found |= {f"adam.{names[i]}.{key}": value.clone() for key, value in moments.items()}
        found["average"] = torch.tensor([self.average.value, float(self.average.seen)], dtype=torch.float64)
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to `tensors`. Raises StoreError where they are of another policy."""
        for module, part in ((self.policy, "policy."), (self.old, "old.")):
            state = {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
            try:
                module.load_state_dict(state)
            except RuntimeError as error:
                reason = str(error).splitlines()[-1].strip()
                raise StoreError(
                    f"the saved state is of another policy ({reason}): continue with the saved run's options"
                ) from error
        moments = self.optimizer.state_dict()
        names = [name for name, _ in self.policy.named_parameters()]
        keys = ("step", "exp_avg", "exp_avg_sq")
        moments["state"] = {
            i: {key: tensors[f"adam.{name}.{key}"].clone() for key in keys}
            for i, name in enumerate(names)
            if f"adam.{name}.step" in tensors
        }
        self.optimizer.load_state_dict(moments)
        value, seen = tensors["average"].tolist()
        self.average.value, self.average.seen = value, bool(seen)
