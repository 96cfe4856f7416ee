"""Losses with parameters of their own, which train beside the network's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Learnable(Protocol):
    """A loss that may hold learned parameters. A loop that finds one calls `start` once, before the first step and
    before `load_state_dict`, hands `parameter_groups()` to its optimiser beside the network's groups, and keeps
    `state_dict()` in its checkpoints."""

    def start(self, classes: int, device: torch.device | str = "cpu", dim: int = 0) -> None:
        """Make the parameters for labels 0 .. classes - 1 and descriptors (m, dim), on a device; what of the two it
        does not need may be left out."""
        ...

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Optimiser groups with their own learning rate and weight decay; none where nothing is learned."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """The parameters by name; copies."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a `state_dict`, in place. Raises StoreError where it is of other classes or options."""
        ...
