"""L2-Net, as HardNet trains it unless told otherwise: seven convolutions from a 32x32 patch to a 128-d unit descriptor.

Tian et al., "L2-Net: Deep Learning of Discriminative Patch Descriptor in Euclidean Space", CVPR 2017; Mishchuk et al.,
"Working hard to know your neighbor's margins", NeurIPS 2017 (dropout, initialisation, the default input normalisation).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hardmine.options import Options as NetworkOptions
from hardmine.train.networks.base import Network, networks

# (channels, stride) of the 3x3 convolutions
_LAYERS = ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1))


class L2NetOptions(NetworkOptions):
    """dropout: rate before the last convolution; 0.3 in HardNet's training script, 0.1 in its older examples.
    normalisation: of the input. "patch", HardNet's: each patch to zero mean and unit deviation. "mean-image", L2-Net's:
    a mean image is subtracted first, and 1e-12 rather than 1e-7 keeps a flat patch from dividing by zero. The mean
    image is a part of the weights, `mean_image` (1, 32, 32) in grey values 0..1, and black until weights bring one."""

    dropout: float = Field(default=0.3, ge=0.0, lt=1.0)
    normalisation: Literal["patch", "mean-image"] = "patch"


@networks.register("l2net")
class L2Net(Network):
    """(n, 1, 32, 32) in [0, 1] to float32 (n, 128) unit descriptors.

    HardNet's data loader also subtracts a global mean and divides by a global deviation; that step is left out, since
    the one per patch undoes it. Layers carry the names of the published HardNet checkpoints.
    """

    Options: ClassVar[type[NetworkOptions]] = L2NetOptions
    name = "l2net"
    side = 32
    dim = 128
    unit_norm = True

    def __init__(self, options: L2NetOptions):
        super().__init__(options)
        self.normalise = InputNormalisation(options.normalisation)
        self.features = tower(options.dropout)

    def forward(self, patches: Tensor) -> Tensor:
        normalised = self.normalise(patches).to(next(self.parameters()).dtype)
        return unit_length(self.features(normalised).flatten(1))

    def from_published(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """A mean image may stand under its bare name, as a tensor of 32 x 32 numbers."""
        return with_mean_image(state, "normalise")


def tower(dropout: float) -> nn.Sequential:
    """The seven convolutions, (n, 1, 32, 32) to (n, 128, 1, 1): without biases, each followed by batch norm without
    scale and shift, orthogonal with gain 0.6 (HardNet)."""
    layers: list[nn.Module] = []
    channels = 1
    for out, stride in _LAYERS:
        conv = nn.Conv2d(channels, out, kernel_size=3, stride=stride, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(out, affine=False), nn.ReLU()]
        channels = out
    head = nn.Conv2d(channels, 128, kernel_size=8, bias=False)
    layers += [nn.Dropout(dropout), head, nn.BatchNorm2d(128, affine=False)]
    for module in layers:
        if isinstance(module, nn.Conv2d):
            nn.init.orthogonal_(module.weight, gain=0.6)
    return nn.Sequential(*layers)


class InputNormalisation(nn.Module):
    """One of the two normalisations of `L2NetOptions`, float32 (n, 1, 32, 32) to the same."""

    def __init__(self, kind: Literal["patch", "mean-image"]):
        super().__init__()
        self.mean_image: Tensor | None
        self.register_buffer("mean_image", torch.zeros(1, 32, 32) if kind == "mean-image" else None)

    def forward(self, patches: Tensor) -> Tensor:
        if self.mean_image is None:
            return standardise(patches)
        # in float64, where the mean of a flat patch is that grey value exactly and 1e-12 divides 0
        return standardise(patches.double() - self.mean_image, 1e-12).float()


def with_mean_image(state: dict[str, Tensor], module: str) -> dict[str, Tensor]:
    """A state whose `mean_image`, where it has one, is moved into `module`, a 32 x 32 one as (1, 32, 32)."""
    rest = dict(state)
    image = rest.pop("mean_image", None)
    if image is not None:
        rest[f"{module}.mean_image"] = image[None] if image.dim() == 2 else image
    return rest


def standardise(patches: Tensor, floor: float = 1e-7) -> Tensor:
    """(x - mean) / (std + floor) per patch, (n, ...), std with N - 1; no gradient through the two numbers. In float32
    (float64 stays) whatever the network computes in: 1e-7 is zero in half precision, and a constant patch would be
    NaN."""
    patches = patches if patches.dtype == torch.float64 else patches.float()
    std, mean = torch.std_mean(patches.detach().flatten(1), dim=1, correction=1)
    shape = (-1,) + (1,) * (patches.dim() - 1)
    return (patches - mean.view(shape)) / (std.view(shape) + floor)


def unit_length(descriptors: Tensor) -> Tensor:
    """x / sqrt(sum x^2 + 1e-10) per row, (n, D) to float32; a zero row stays zero. In float32 for the same reason."""
    descriptors = descriptors.float()
    return descriptors / torch.sqrt(descriptors.square().sum(dim=1, keepdim=True) + 1e-10)
