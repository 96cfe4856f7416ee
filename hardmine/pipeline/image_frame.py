"""How an image becomes a network's input when nothing is left to chance: in mining, evaluation and use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F

from hardmine.errors import InputError

Item = np.ndarray  # uint8 (H, W) or (H, W, 3)


@dataclass(frozen=True)
class ImageFrame:
    """The shorter side is scaled to `resize` pixels (bilinear, averaged over the pixels that fall together), then the
    centre side x side is cut out. channels: 3 repeats a grey image, 1 takes the BT.601 luma of a coloured one."""

    channels: int
    resize: int
    side: int

    def __post_init__(self) -> None:
        if self.channels not in (1, 3) or not 0 < self.side <= self.resize:
            raise InputError(f"{self}: needs 1 or 3 channels, and 0 < side <= resize")

    def record(self) -> dict[str, Any]:
        """JSON-able facts that fix the transform; part of a network's identity."""
        return asdict(self)

    def fit(self, items: Sequence[Item] | np.ndarray) -> torch.Tensor:
        """n images as network input but for its type: uint8 (n, channels, side, side)."""
        if isinstance(items, np.ndarray):  # all of one size
            return self._fit(as_channels(items, self.channels))
        fitted = torch.empty((len(items), self.channels, self.side, self.side), dtype=torch.uint8)
        for i, item in enumerate(items):
            fitted[i] = self._fit(as_channels(item[None], self.channels))[0]
        return fitted

    def _fit(self, images: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[-2:]
        if min(height, width) != self.resize:
            images = F.resize(images, [self.resize], antialias=True)
        return F.center_crop(images, [self.side, self.side])


def as_channels(images: np.ndarray, channels: int) -> torch.Tensor:
    """uint8 (n, H, W) or (n, H, W, 3) as (n, channels, H, W)."""
    if images.ndim == 3:
        grey = torch.from_numpy(images)[:, None]
        return grey if channels == 1 else grey.expand(-1, 3, -1, -1)
    coloured = torch.from_numpy(images).permute(0, 3, 1, 2)
    return coloured if channels == 3 else F.rgb_to_grayscale(coloured)


def unit_interval(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """uint8 images as float32 in [0, 1] on `device`, channels last."""
    moved = images.to(device, non_blocking=True).float() / 255
    return moved.contiguous(memory_format=torch.channels_last)
