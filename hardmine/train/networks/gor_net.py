"""The network of the GOR paper: three convolutions and one dense layer, from a 64x64 patch to unit descriptors.

Zhang et al., "Learning Spread-out Local Feature Descriptors", ICCV 2017, section 4.1; what the paper leaves open (batch
norm per position, initialisation, decay) is as in the code released with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from hardmine.options import Options as NetworkOptions
from hardmine.train.networks.base import Network, networks
from hardmine.train.networks.l2net import unit_length

# (channels, kernel size, side of the map it gives) of the convolutions; none is padded, each map is then halved
_LAYERS = ((32, 7, 58), (64, 6, 24), (128, 5, 8))


class GorNetOptions(NetworkOptions):
    """dim: numbers in a descriptor. unit_norm: scale descriptors to unit length; false: divide them by 30, as the
    released code does without normalisation. mean, std: of all grey values (0..1) of the training set, subtracted and
    divided by. PhotoTour's: liberty 0.4437 and 0.2019 (the default), notredame 0.4854 and 0.1864, yosemite 0.4844 and
    0.1818. decay: of the batch norm's running statistics, which start at 0 and 1: with the published 0.999 they need
    several thousand steps to forget that, so a short training wants a smaller one."""

    dim: int = Field(default=128, ge=1)
    unit_norm: bool = True
    mean: float = 0.4437
    std: float = Field(default=0.2019, gt=0.0)
    decay: float = Field(default=0.999, ge=0.0, lt=1.0)


@networks.register("gor-net")
class GorNet(Network):
    """(n, 1, 64, 64) in [0, 1] to float32 (n, dim) descriptors, of unit length unless the options say otherwise.

    Weights are drawn from a normal distribution of deviation 0.1 truncated at 0.2, biases are 0.1.
    """

    Options: ClassVar[type[NetworkOptions]] = GorNetOptions
    options: GorNetOptions
    name = "gor-net"
    side = 64

    def __init__(self, options: GorNetOptions):
        super().__init__(options)
        self.dim, self.unit_norm = options.dim, options.unit_norm
        layers: list[nn.Module] = []
        channels = 1
        for out, kernel, side in _LAYERS:
            norm = PositionNorm(out, side, options.decay)
            layers += [nn.Conv2d(channels, out, kernel), norm, nn.ReLU(), nn.MaxPool2d(2)]
            channels = out
        self.features = nn.Sequential(*layers)
        self.descriptor = nn.Linear(128 * 4 * 4, options.dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.1, a=-0.2, b=0.2)
                assert module.bias is not None  # no layer above leaves it out
                nn.init.constant_(module.bias, 0.1)

    def forward(self, patches: Tensor) -> Tensor:
        scaled = ((patches.float() - self.options.mean) / self.options.std).to(next(self.parameters()).dtype)
        descriptors = self.descriptor(self.features(scaled).flatten(1)).float()
        return unit_length(descriptors) if self.unit_norm else descriptors / 30


class PositionNorm(nn.Module):
    """Batch normalisation with a mean and a variance for each channel and position, over the batch alone, and a scale
    and shift for each channel: (n, C, S, S) to the same.

    Variances divide by n, also the running ones. Computed in float32, epsilon 1e-3. moments: maps (n, C, S, S) to
    (variance, mean), both (C, S, S), of the whole batch, where these n are a part of it.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, side: int, decay: float, eps: float = 1e-3):
        super().__init__()
        self.decay, self.eps = decay, eps
        self.moments: Callable[[Tensor], tuple[Tensor, Tensor]] = _moments
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels, side, side))
        self.register_buffer("running_var", torch.ones(channels, side, side))

    def forward(self, maps: Tensor) -> Tensor:
        wide = maps.float()
        if self.training:
            var, mean = self.moments(wide)
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), 1 - self.decay)
                self.running_var.lerp_(var.to(self.running_var.dtype), 1 - self.decay)
        else:
            mean, var = self.running_mean.float(), self.running_var.float()
        scale = self.weight.float().view(-1, 1, 1) * torch.rsqrt(var + self.eps)
        return torch.addcmul(self.bias.float().view(-1, 1, 1), wide - mean, scale).to(maps.dtype)


def _moments(maps: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(maps, dim=0, correction=0)
