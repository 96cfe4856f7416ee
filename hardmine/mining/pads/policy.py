"""The policy: a small network from the state of the training to a multiplier for each bin, and a value.

Section 4 of the PADS paper; the layers are those of the released code.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from hardmine.mining.draws import draw


class Policy(nn.Module):
    """state (S,) -> Linear-ReLU-Linear-ReLU -> logits (actions, bins), and a value where there is a value head.

    The bins are independent of each other: each has a softmax over the actions. init: "default" is torch's, "he_normal"
    normal weights of variance 2 / inputs and biases 0. The weights depend on `seed` alone.
    """

    def __init__(
        self,
        state_size: int,
        bins: int,
        *,
        actions: int = 3,
        hidden: int = 128,
        value: bool = True,
        init: Literal["default", "he_normal"] = "default",
        seed: int = 0,
    ):
        super().__init__()
        self.state_size, self.bins, self.actions = state_size, bins, actions
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.trunk = nn.Sequential(nn.Linear(state_size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
            self.action = nn.Linear(hidden, actions * bins)
            self.value = nn.Linear(hidden, 1) if value else None
            if init == "he_normal":
                for layer in self.modules():
                    if isinstance(layer, nn.Linear):
                        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                        nn.init.zeros_(layer.bias)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (actions, bins) and the value, a scalar (0 without a value head). state: float (S,)."""
        hidden = self.trunk(state.to(self.action.weight.dtype))
        logits = self.action(hidden).view(self.actions, self.bins)
        value = hidden.new_zeros(()) if self.value is None else self.value(hidden).squeeze(0)
        return torch.log_softmax(logits, dim=0), value


def choose(log_probability: Tensor, generator: torch.Generator) -> Tensor:
    """An action for each bin, int64 (bins,), drawn by its probabilities. log_probability: (actions, bins).

    A probability that is NaN counts as 0, and where all of a bin are, they count as equal (as in the released code)."""
    log_probability = log_probability.detach().T.double()
    known = ~log_probability.isnan()
    log_probability = log_probability.masked_fill(~known, -torch.inf)
    return draw(log_probability.masked_fill(~known.any(1, keepdim=True), 0.0), generator)


def log_of_chosen(log_probability: Tensor, action: Tensor) -> Tensor:
    """log pi(a | s) of each bin, (bins,). log_probability: (actions, bins); action: int64 (bins,)."""
    return log_probability.gather(0, action[None, :]).squeeze(0)
