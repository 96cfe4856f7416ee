"""What the networks have in common whose layers kornia holds: imported when one is built, never downloading weights."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

from hardmine.errors import InputError
from hardmine.options import Options as NetworkOptions
from hardmine.train.networks.base import Network

_PREFIX = "published."


def kornia_feature() -> Any:
    """The module `kornia.feature`. Raises InputError, which says how to install it, where kornia is absent."""
    try:
        return importlib.import_module("kornia.feature")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("kornia"):
            raise
        raise InputError("this needs kornia, which is not installed: pip install 'hardmine[kornia]'") from error


class KorniaNetwork(Network):
    """(n, 1, 32, 32) in [0, 1] to float32 (n, 128) unit descriptors, by a module of kornia's. Published checkpoints
    carry the names of kornia's layers, and `load_weights` takes them."""

    side = 32
    dim = 128
    unit_norm = True

    def __init__(self, options: NetworkOptions, published: nn.Module):
        super().__init__(options)
        self.published = published

    def forward(self, patches: Tensor) -> Tensor:
        return self.published(patches.to(next(self.parameters()).dtype)).float()

    def from_published(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """kornia's and the authors' names, which start at the layers."""
        return {name if name.startswith(_PREFIX) else _PREFIX + name: value for name, value in state.items()}
