"""What image networks share: their frame, colour normalisation, head, unit length, and frozen batch norm."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hardmine.options import Options as NetworkOptions
from hardmine.pipeline.image_frame import ImageFrame
from hardmine.train.networks.base import Network
from hardmine.train.networks.l2net import unit_length

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImageOptions(NetworkOptions):
    """dim: length of the descriptor. unit_norm: brought to unit length. side, resize: of the frame, see `ImageFrame`
    (specs 1.7: 224 of 256); resize None is the side itself. normalise: "imagenet", mean and deviation of its pixels;
    "bgr", DSDML's: BGR, 0..255, less (104, 117, 128); "none", 0..1."""

    dim: int = Field(128, ge=1)
    unit_norm: bool = True
    side: int = Field(224, ge=1)
    resize: int | None = Field(None, ge=1)
    normalise: Literal["imagenet", "bgr", "none"] = "imagenet"


class ImageNetwork(Network):
    """Images to descriptors: `frame` says how an image becomes float32 (n, channels, side, side) in [0, 1]; a subclass
    computes `features`, (n, channels, side, side) to (n, F), and sets `head`, (n, F) to (n, dim).

    frozen_bn: batch norm layers keep the statistics and factors they have (specs 1.7), also in training mode.
    """

    Options: ClassVar[type[NetworkOptions]] = ImageOptions
    options: Any
    channels = 3
    frozen_bn = False
    head: nn.Module
    _mean: Tensor
    _std: Tensor

    def __init__(self, options: ImageOptions):
        super().__init__(options)
        self.side, self.dim, self.unit_norm = options.side, options.dim, options.unit_norm
        self.frame = ImageFrame(self.channels, options.resize or options.side, options.side)
        mean, std = {
            "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
            "bgr": ((104 / 255, 117 / 255, 128 / 255), (1 / 255,) * 3),
            "none": ((0.0,), (1.0,)),
        }[options.normalise]
        self._bgr = options.normalise == "bgr"
        self.register_buffer("_mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def features(self, images: Tensor) -> Tensor:
        """(n, channels, side, side), normalised, to (n, F)."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it computes features")

    def forward(self, images: Tensor) -> Tensor:
        """float32 (n, channels, side, side) in [0, 1] to float32 (n, dim)."""
        if self._bgr:
            images = images.flip(1)
        normalised = ((images - self._mean) / self._std).to(next(self.parameters()).dtype)
        descriptors = self.head(self.features(normalised)).float()
        return unit_length(descriptors) if self.unit_norm else descriptors

    def train(self, mode: bool = True) -> ImageNetwork:
        """Training mode; frozen batch norm stays in evaluation mode."""
        super().train(mode)
        if self.frozen_bn:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self
