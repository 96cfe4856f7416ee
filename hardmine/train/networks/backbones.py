"""Backbones of torchvision with an embedding head: ResNet-50 and GoogLeNet, the networks of the image papers.

PADS trains ResNet-50 (specs 1.7), GOR's image experiments and the lifted structure paper GoogLeNet. ImageNet weights
are never fetched: give torchvision's own file as `network.weights`; the head keeps its initial weights.
"""

from __future__ import annotations

from typing import Any, Literal

import torchvision
from pydantic import Field
from torch import Tensor, nn

from hardmine.train.networks.base import networks
from hardmine.train.networks.image_network import ImageNetwork, ImageOptions


class BackboneOptions(ImageOptions):
    """frozen_bn: batch norm stays as the given weights have it, statistics and factors; use it with pretrained weights
    only. pool: over the last feature map, "average" (PADS) or "max" (DSDML). batch: images embedded at once."""

    resize: int | None = Field(256, ge=1)
    frozen_bn: bool = False
    pool: Literal["average", "max"] = "average"
    batch: int = Field(64, ge=1)


class Backbone(ImageNetwork):
    """A torchvision classifier whose last layer is replaced by a linear head."""

    Options = BackboneOptions
    options: BackboneOptions

    def __init__(self, options: BackboneOptions):
        super().__init__(options)
        self.frozen_bn, self.batch = options.frozen_bn, options.batch
        body: Any = self._body()
        width = int(body.fc.in_features)
        body.fc = nn.Identity()
        if options.pool == "max":
            body.avgpool = nn.AdaptiveMaxPool2d(1)
        self.body, self.head = body, nn.Linear(width, options.dim)
        if options.frozen_bn:
            for module in self.body.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.requires_grad_(False)

    def _body(self) -> nn.Module:
        raise NotImplementedError(f"{type(self).__name__} does not say which backbone it has")

    def features(self, images: Tensor) -> Tensor:
        """See `ImageNetwork.features`."""
        return self.body(images)

    def from_published(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """torchvision's weights of the classifier: without its last layer and auxiliary classifiers, and with the
        present head."""
        if not any(key.startswith(("conv1.", "layer1.")) for key in state):
            return state
        body = {f"body.{k}": v for k, v in state.items() if not k.startswith(("fc.", "aux1.", "aux2."))}
        return body | {f"head.{name}": value for name, value in self.head.state_dict().items()}


@networks.register("resnet50")
class ResNet50(Backbone):
    """ResNet-50 (He et al. 2016)."""

    name = "resnet50"

    def _body(self) -> nn.Module:
        return torchvision.models.resnet50(weights=None)


@networks.register("googlenet")
class GoogLeNet(Backbone):
    """GoogLeNet with batch norm (Szegedy et al. 2015, as torchvision has it), without auxiliary classifiers."""

    name = "googlenet"

    def _body(self) -> nn.Module:
        return torchvision.models.googlenet(weights=None, aux_logits=False, transform_input=False, init_weights=True)
