"""SOSNet: the layers of L2-Net behind an instance normalisation, from a 32x32 patch to a 128-d unit descriptor.

Tian et al., "SOSNet: Second Order Similarity Regularization for Local Descriptor Learning", CVPR 2019; kornia's layers.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from hardmine.options import Options as NetworkOptions
from hardmine.train.networks.base import networks
from hardmine.train.networks.kornia_network import KorniaNetwork, kornia_feature


class SOSNetOptions(NetworkOptions):
    """dropout: rate before the last convolution."""

    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)


@networks.register("sosnet")
class SOSNet(KorniaNetwork):
    """`kornia.feature.SOSNet` with PyTorch's default initial weights. Raises InputError where kornia is absent."""

    Options: ClassVar[type[NetworkOptions]] = SOSNetOptions
    name = "sosnet"

    def __init__(self, options: SOSNetOptions):
        published = kornia_feature().SOSNet(pretrained=False)
        super().__init__(options, published)
        for module in published.modules():
            if isinstance(module, nn.Dropout):
                module.p = options.dropout
