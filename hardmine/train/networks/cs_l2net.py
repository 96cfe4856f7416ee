"""CS-L2-Net: two L2-Nets, one that sees the whole 64x64 patch at half size, one its middle, joined to 256 numbers.

Tian et al., "L2-Net: Deep Learning of Discriminative Patch Descriptor in Euclidean Space", CVPR 2017, section 3.1.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hardmine.options import Options as NetworkOptions
from hardmine.train.networks.base import Network, networks
from hardmine.train.networks.l2net import InputNormalisation, L2NetOptions, tower, unit_length, with_mean_image


@networks.register("cs-l2net")
class CentralSurroundL2Net(Network):
    """(n, 1, 64, 64) in [0, 1] to float32 (n, 256) unit descriptors.

    The surround tower sees the patch at 32x32, as `prepare` shrinks it for an L2-Net (means of 2 x 2 pixels, rounded to
    8 bits; the released MATLAB code shrinks with a bicubic filter), the central tower its rows and columns 16..47
    (0-based). Towers share no weights; each has a mean image of its own under the normalisation "mean-image". Each
    tower's 128 numbers have the length 1 / sqrt(2), so that both weigh the same and all 256 have length 1; the released
    code leaves the length at sqrt(2), which changes no order of distances.
    """

    Options: ClassVar[type[NetworkOptions]] = L2NetOptions
    name = "cs-l2net"
    side = 64
    dim = 256
    unit_norm = True

    def __init__(self, options: L2NetOptions):
        super().__init__(options)
        self.surround = _Tower(options)
        self.central = _Tower(options)

    def forward(self, patches: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        views = (half_size(patches), patches[:, :, 16:48, 16:48])
        towers = (self.surround, self.central)
        return unit_length(torch.cat([unit_length(tower(view, dtype)) for tower, view in zip(towers, views)], 1))

    def from_published(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The mean images may stand under their bare names, `surround.mean_image` and `central.mean_image`."""
        named: dict[str, Tensor] = {}
        for part in ("surround", "central"):
            own = {k.removeprefix(f"{part}."): v for k, v in state.items() if k.startswith(f"{part}.")}
            named |= {f"{part}.{k}": v for k, v in with_mean_image(own, "normalise").items()}
        return named | {k: v for k, v in state.items() if not k.startswith(("surround.", "central."))}


class _Tower(nn.Module):
    """An L2-Net without its last normalisation: float32 (n, 1, 32, 32) to (n, 128), computed in `dtype`."""

    def __init__(self, options: L2NetOptions):
        super().__init__()
        self.normalise = InputNormalisation(options.normalisation)
        self.features = tower(options.dropout)

    def forward(self, patches: Tensor, dtype: torch.dtype) -> Tensor:
        return self.features(self.normalise(patches).to(dtype)).flatten(1)


def half_size(patches: Tensor) -> Tensor:
    """Means of 2 x 2 pixels, rounded to 8 bits (halves up) as `pipeline.pixels.prepare` does: float32 (n, 1, 2S, 2S) in
    [0, 1] to float32 (n, 1, S, S)."""
    grey = torch.round(patches.float() * 255)  # whole numbers, so that a half is exactly a half
    return torch.floor(F.avg_pool2d(grey, 2) + 0.5) / 255
