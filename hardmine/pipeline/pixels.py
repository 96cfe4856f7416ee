"""From stored patches to a network's input: turn, resize, flip; batched, on the CPU or a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hardmine.errors import InputError
from hardmine.store.patches import PatchStore


def require_grey_patches(store: PatchStore) -> None:
    """Raises InputError unless the items of `store` are grey and of one size, which is what `prepare` takes."""
    shape = store.pixel_shape
    if shape is None or len(shape) != 2:
        found = "images of several sizes" if shape is None else f"items of shape {shape}"
        raise InputError(
            f"{store.path} holds {found}, and the networks here take grey patches of one size: ingest it with "
            "--picture colour=grey --picture size=square:64"
        )


def prepare(
    patches: torch.Tensor, side: int, *, angle: torch.Tensor | None = None, dihedral: torch.Tensor | None = None
) -> torch.Tensor:
    """Stored patches as network input: float32 (n, 1, side, side) in [0, 1].

    patches: uint8 (n, H, W). angle: (n,) radians, each patch turned about its centre, counter-clockwise, with reflected
    borders (AdaSample's views); a patch with angle 0 keeps its pixels exactly. Best on the CPU: which are not 0 must be
    known there. dihedral: (n,) codes 0..7, see `turn_and_flip`. Resizing is bilinear between pixel centres and rounds
    back to 8 bits, as OpenCV's on uint8 does and so every published pipeline (specs 3.3): 64 to 32 is the rounded mean
    of 2 x 2 pixels.
    """
    pixels = patches.unsqueeze(1).to(torch.float32)
    if angle is not None:
        turned = torch.nonzero(angle).squeeze(1)
        if len(turned):
            angle, turned = (x.to(pixels.device, non_blocking=True) for x in (angle[turned], turned))
            pixels[turned] = rotate(pixels[turned], angle)
    if pixels.shape[-2:] != (side, side):
        pixels = F.interpolate(pixels, size=(side, side), mode="bilinear", align_corners=False)
    pixels = torch.floor(pixels + 0.5) / 255
    return pixels if dihedral is None else turn_and_flip(pixels, dihedral)


def rotate(pixels: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Square images (n, 1, S, S) turned by `angle` (n,) radians about their centres, bilinear, borders reflected."""
    cos, sin, zero = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
    matrix = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid = F.affine_grid(matrix, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def turn_and_flip(pixels: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    """The eight symmetries of a square, one per image: bit 0 of `code` transposes, bit 1 mirrors left-right, bit 2
    top-bottom (in this order), so codes 0..3 are HardNet's `fliprot` and 0..7 all flips and quarter turns."""
    bit = code.view(-1, 1, 1, 1).to(pixels.device, non_blocking=True)
    pixels = torch.where(bit & 1 > 0, pixels.transpose(2, 3), pixels)
    pixels = torch.where(bit & 2 > 0, pixels.flip(3), pixels)
    return torch.where(bit & 4 > 0, pixels.flip(2), pixels)
