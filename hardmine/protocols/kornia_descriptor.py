"""kornia's hand-made patch descriptors (SIFT, MKD) as networks, so that they are embedded once and compared."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hardmine.errors import InputError, UnknownNameError
from hardmine.options import Options
from hardmine.train.networks import Network
from hardmine.train.networks.kornia_network import kornia_feature


class KorniaDescriptor(Network):
    """(n, 1, side, side) in [0, 1] to float32 (n, dim) by a descriptor class of `kornia.feature`.

    arguments: of the class; without `patch_size`, its own size is used. MKD is used without whitening, whose models
    kornia would download. Raises UnknownNameError for a class that maps no patches to descriptors or that is learned
    (`NETWORK=FILE` takes its weights), InputError where kornia is absent or refuses the arguments.
    """

    def __init__(self, class_name: str, arguments: Mapping[str, Any]):
        super().__init__(Options())
        feature = kornia_feature()
        known = _descriptors(feature)
        if class_name not in known:
            raise UnknownNameError("kornia descriptor without weights", class_name, known)
        self.name = f"kornia:{class_name}"
        signature = inspect.signature(known[class_name]).parameters
        unknown = [name for name in arguments if name not in signature]
        if unknown:
            raise UnknownNameError(f"argument of {self.name}", unknown[0], signature)
        if "whitening" in arguments:
            raise InputError(f"{self.name} is used without whitening, since kornia would download its model")
        self.arguments = {"patch_size": signature["patch_size"].default, **arguments}
        bare = {"whitening": None} if "whitening" in signature else {}
        try:
            self.descriptor: nn.Module = known[class_name](**self.arguments, **bare)
        except Exception as error:  # kornia's own errors have no common base with the builtins
            raise InputError(f"{self.name} cannot be built with {self.arguments}: {error}") from error
        self.side, self.version = int(self.arguments["patch_size"]), str(_version())
        self.eval()
        with torch.no_grad():
            probe = self(torch.rand(4, 1, self.side, self.side, generator=torch.Generator().manual_seed(0)))
        self.dim = int(probe.shape[1])
        self.unit_norm = bool(torch.allclose(probe.norm(dim=1), torch.ones(4), atol=1e-3))

    def forward(self, patches: Tensor) -> Tensor:
        return self.descriptor(patches.float())

    def identity(self) -> dict[str, Any]:
        """The class with its arguments, and kornia's version, which fixes what they do."""
        return {**super().identity(), "options": dict(self.arguments), "kornia": self.version}


def _descriptors(feature: Any) -> dict[str, type[nn.Module]]:
    """The classes of `kornia.feature` that map one batch of patches of a given size to descriptors, by name."""
    found = {}
    for name in dir(feature):
        kind = getattr(feature, name)
        if not (inspect.isclass(kind) and issubclass(kind, nn.Module) and name.endswith("Descriptor")):
            continue
        inputs = list(inspect.signature(kind.forward).parameters)[1:]
        if len(inputs) == 1 and "patch_size" in inspect.signature(kind).parameters:
            found[name] = kind
    return found


def _version() -> str:
    from importlib.metadata import version

    return version("kornia")
