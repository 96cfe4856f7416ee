"""A small convolutional network for images of 28 to 105 pixels, such as Omniglot's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from hardmine.train.networks.base import networks
from hardmine.train.networks.image_network import ImageNetwork, ImageOptions


class ConvNetOptions(ImageOptions):
    """side, resize: of the frame. channels: 1 or 3. width: filters of each block. blocks: each halves the side.
    normalise: "none" is what fits a network that starts from nothing."""

    side: int = Field(28, ge=4)
    channels: Literal[1, 3] = 1
    width: int = Field(64, ge=1)
    blocks: int = Field(4, ge=1)
    normalise: Literal["imagenet", "bgr", "none"] = "none"


@networks.register("convnet")
class ConvNet(ImageNetwork):
    """Blocks of a 3x3 convolution, batch norm, ReLU and 2x2 max pooling, as in Vinyals et al., "Matching networks for
    one shot learning" (2016), then a linear layer to the descriptor."""

    Options = ConvNetOptions
    options: ConvNetOptions
    name = "convnet"

    def __init__(self, options: ConvNetOptions):
        self.channels = options.channels
        super().__init__(options)
        layers: list[nn.Module] = []
        channels, side = int(options.channels), options.side
        for _ in range(options.blocks):
            layers += [nn.Conv2d(channels, options.width, 3, padding=1), nn.BatchNorm2d(options.width), nn.ReLU()]
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
            channels, side = options.width, (side + 1) // 2
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels * side * side, options.dim)

    def features(self, images: Tensor) -> Tensor:
        """See `ImageNetwork.features`."""
        return self.body(images).flatten(1)
