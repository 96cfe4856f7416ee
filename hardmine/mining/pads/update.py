"""What the policy learns from: the sign of progress as reward, an advantage, and the losses of actor and critic.

Section 4 of the PADS paper; Schulman et al., "Proximal policy optimization algorithms", 2017 (PPO); Williams, 1992
(REINFORCE). Each formula is the released code's.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reward(metric: float, before: float) -> int:
    """r_t = sign(e_t - e_(t-1)): 1 where the validation metric grew, -1 where it fell, else 0."""
    return int(metric > before) - int(metric < before)


def td_target(reward: float, next_value: Tensor, discount: float) -> Tensor:
    """r_t + discount V(s_t), taken as a constant."""
    return reward + discount * next_value.detach()


def ppo_loss(log_probability: Tensor, old_log_probability: Tensor, advantage: Tensor | float, clip: float) -> Tensor:
    """-mean over bins of min(rho A, clip(rho, 1 - clip, 1 + clip) A), rho = pi / pi_old of the actions taken.

    log_probability, old_log_probability: (bins,), the latter a constant. advantage: a scalar, a constant."""
    ratio = torch.exp(log_probability - old_log_probability.detach())
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def reinforce_loss(log_probability: Tensor, advantage: Tensor | float) -> Tensor:
    """-mean over bins of A log pi of the actions taken. log_probability: (bins,)."""
    return -(advantage * log_probability).mean()


class RewardAverage:
    """The baseline without a critic: a running average of past rewards, ema <- (1 - weight) ema + weight r, that starts
    at the first reward. value: 0 before it; seen: whether there was one."""

    def __init__(self, weight: float):
        self.weight, self.value, self.seen = weight, 0.0, False

    def advantage(self, reward: float) -> float:
        """The reward less the average of those before it, which then takes it in."""
        advantage = reward - self.value
        self.value = (1 - self.weight) * self.value + self.weight * reward if self.seen else float(reward)
        self.seen = True
        return advantage
