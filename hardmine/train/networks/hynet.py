"""HyNet: the layout of L2-Net with filter response normalisation, from a 32x32 patch to a 128-d unit descriptor.

Tian et al., "HyNet: Learning Local Descriptor with Hybrid Similarity Measure and Triplet Loss", NeurIPS 2020; kornia's
layers.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from hardmine.options import Options as NetworkOptions
from hardmine.train.networks.base import networks
from hardmine.train.networks.kornia_network import KorniaNetwork, kornia_feature


class HyNetOptions(NetworkOptions):
    """dropout: rate before the last convolution."""

    dropout: float = Field(default=0.3, ge=0.0, lt=1.0)


@networks.register("hynet")
class HyNet(KorniaNetwork):
    """`kornia.feature.HyNet` with PyTorch's default initial weights. Raises InputError where kornia is absent."""

    Options: ClassVar[type[NetworkOptions]] = HyNetOptions
    name = "hynet"

    def __init__(self, options: HyNetOptions):
        super().__init__(options, kornia_feature().HyNet(pretrained=False, drop_rate=options.dropout))
