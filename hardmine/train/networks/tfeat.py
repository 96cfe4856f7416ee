"""TFeat: two convolutions and one dense layer with tanh, from a 32x32 patch to 128 numbers.

Balntas et al., "Learning local feature descriptors with triplets and shallow convolutional neural networks", BMVC 2016.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from hardmine.options import Options as NetworkOptions
from hardmine.train.networks.base import Network, networks
from hardmine.train.networks.l2net import unit_length


class TFeatOptions(NetworkOptions):
    """unit_norm: scale the descriptors to unit length, as HardTFeat does; TFeat itself leaves them as they are."""

    unit_norm: bool = False


@networks.register("tfeat")
class TFeat(Network):
    """(n, 1, 32, 32) in [0, 1] to float32 (n, 128), each number in (-1, 1).

    Instance normalisation is computed on grey values 0..255, as the published weights expect (its epsilon of 1e-5 is
    not scaled), and in float32. `load_weights` accepts the published TFeat and HardTFeat checkpoints.
    """

    Options: ClassVar[type[NetworkOptions]] = TFeatOptions
    name = "tfeat"
    side = 32
    dim = 128

    def __init__(self, options: TFeatOptions):
        super().__init__(options)
        self.unit_norm = options.unit_norm
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=7),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=6),
            nn.Tanh(),
        )
        self.descriptor = nn.Sequential(nn.Linear(64 * 8 * 8, self.dim), nn.Tanh())

    def forward(self, patches: Tensor) -> Tensor:
        normalised = F.instance_norm(patches.float() * 255.0).to(next(self.parameters()).dtype)
        descriptors = self.descriptor(self.features(normalised).flatten(1)).float()
        return unit_length(descriptors) if self.unit_norm else descriptors

    def from_published(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """TFeat counts its instance normalisation as layer 0 and calls the dense layer `descr`; HardTFeat writes it as
        an 8x8 convolution and carries the fixed filters of a SIFT beside it, which are not part of the network."""
        if "descr.0.weight" in state:
            layers = {"features.1": "features.0", "features.4": "features.3", "descr.0": "descriptor.0"}
        elif "classifier.1.weight" in state:
            state = {k: v for k, v in state.items() if not k.startswith("SIFT.")}
            state["classifier.1.weight"] = state["classifier.1.weight"].flatten(1)
            layers = {"classifier.1": "descriptor.0"}
        else:
            return state
        renamed = {}
        for key, value in state.items():
            layer, _, kind = key.rpartition(".")
            renamed[f"{layers.get(layer, layer)}.{kind}"] = value
        return renamed
