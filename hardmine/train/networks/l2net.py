"""L2-Net as HardNet trains it: seven convolutions from a 32x32 patch to a 128-d unit descriptor.

Tian et al., "L2-Net: Deep Learning of Discriminative Patch Descriptor in Euclidean Space", CVPR 2017; Mishchuk et al.,
"Working hard to know your neighbor's margins", NeurIPS 2017 (input normalisation, dropout, initialisation).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from hardmine.options import Options as NetworkOptions
from hardmine.train.networks.base import Network, networks

# (channels, stride) of the 3x3 convolutions
_LAYERS = ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1))


class L2NetOptions(NetworkOptions):
    """dropout: rate before the last convolution; 0.3 in HardNet's training script, 0.1 in its older examples."""

    dropout: float = Field(default=0.3, ge=0.0, lt=1.0)


@networks.register("l2net")
class L2Net(Network):
    """(n, 1, 32, 32) in [0, 1] to float32 (n, 128) unit descriptors.

    Each patch is brought to zero mean and unit deviation first. HardNet's data loader also subtracts a global mean and
    divides by a global deviation; that step is left out, since the per-patch one undoes it. Layers carry the names of
    the published HardNet checkpoints.
    """

    Options: ClassVar[type[NetworkOptions]] = L2NetOptions
    name = "l2net"
    side = 32
    dim = 128
    unit_norm = True

    def __init__(self, options: L2NetOptions):
        super().__init__(options)
        layers: list[nn.Module] = []
        channels = 1
        for out, stride in _LAYERS:
            conv = nn.Conv2d(channels, out, kernel_size=3, stride=stride, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(out, affine=False), nn.ReLU()]
            channels = out
        head = nn.Conv2d(channels, self.dim, kernel_size=8, bias=False)
        layers += [nn.Dropout(options.dropout), head, nn.BatchNorm2d(self.dim, affine=False)]
        self.features = nn.Sequential(*layers)
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.orthogonal_(module.weight, gain=0.6)

    def forward(self, patches: Tensor) -> Tensor:
        normalised = standardise(patches).to(next(self.parameters()).dtype)
        return unit_length(self.features(normalised).flatten(1))


def standardise(patches: Tensor) -> Tensor:
    """(x - mean) / (std + 1e-7) per patch, (n, ...) to float32, std with N - 1; no gradient through the two numbers.
    In float32 whatever the network computes in: 1e-7 is zero in half precision, and a constant patch would be NaN."""
    patches = patches.float()
    std, mean = torch.std_mean(patches.detach().flatten(1), dim=1, correction=1)
    shape = (-1,) + (1,) * (patches.dim() - 1)
    return (patches - mean.view(shape)) / (std.view(shape) + 1e-7)


def unit_length(descriptors: Tensor) -> Tensor:
    """x / sqrt(sum x^2 + 1e-10) per row, (n, D) to float32; a zero row stays zero. In float32 for the same reason."""
    descriptors = descriptors.float()
    return descriptors / torch.sqrt(descriptors.square().sum(dim=1, keepdim=True) + 1e-10)
