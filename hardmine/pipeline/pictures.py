"""What a stored image looks like: the picture options, and what they make of a dataset's file.

    policy = check(PicturePolicy, {"size": "shorter:256"}, "picture options")
    encoded = apply(Picture(path.read_bytes(), b"a.jpg"), policy)   # content, extension, shape, rules

A file's own bytes are kept wherever any decoder gives the same pixels from them and nothing has to change.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image
from pydantic import Field, field_validator

from hardmine.errors import InputError
from hardmine.options import Options
from hardmine.pipeline.readers.base import Picture
from hardmine.store.decode import PALETTE, ImageError, examine

POLICY = (
    "first frame; EXIF orientation applied; alpha over white; 16 bit >> 8; palette, CMYK and others to RGB, no colour "
    "profile; grey by BT.601 luma; the file's own bytes where that changes nothing"
)
CROPPED, CLIPPED = "cropped to the box", "box clipped to the image"
SHRUNK, ENLARGED, SQUARED = "shrunk", "enlarged", "sides cut off for a square"
GREYED = "colour turned grey"
KEPT, ENCODED = "original bytes kept", "encoded anew"

_EXTENSION = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif", "GIF": "gif"}
_NETPBM = {"1": "pbm", "L": "pgm", "RGB": "ppm"}
_PNG_LEVEL = 3  # three times as fast as Pillow's 6 for a few per cent more bytes


class PicturePolicy(Options):
    """Options of `ingest --picture`."""

    size: str = Field(
        "keep",
        description="keep; shorter:N: the shorter side shrunk to N pixels, never enlarged; square:N: the shorter side "
        "scaled to N pixels, then the centre N x N",
    )
    crop: bool = Field(False, description="cut out the item's box first, where the dataset has boxes")
    colour: Literal["rgb", "grey"] = Field("rgb", description="rgb, or grey (BT.601 luma)")
    encoding: str = Field(
        "original",
        description="original: the file's own bytes where nothing changes, PNG otherwise; png; jpeg:QUALITY (1 to 100)",
    )

    @field_validator("size")
    @classmethod
    def _size(cls, text: str) -> str:
        rule, _, number = text.partition(":")
        scaled = rule in ("shorter", "square") and number.isascii() and number.isdigit() and int(number) > 0
        if text == "keep" or scaled:
            return text
        raise ValueError("write keep, shorter:N or square:N, N in pixels")

    @field_validator("encoding")
    @classmethod
    def _encoding(cls, text: str) -> str:
        form, _, quality = text.partition(":")
        if text in ("original", "png"):
            return text
        if form == "jpeg" and quality.isascii() and quality.isdigit() and 1 <= int(quality) <= 100:
            return text
        raise ValueError("write original, png or jpeg:QUALITY, with a quality from 1 to 100")

    @property
    def shape(self) -> tuple[int, ...] | None:
        """(H, W) or (H, W, 3) where every image gets the same size, else None."""
        rule, _, number = self.size.partition(":")
        if rule != "square":
            return None
        side = int(number)
        return (side, side) if self.colour == "grey" else (side, side, 3)


@dataclass(frozen=True)
class Encoded:
    """An image as it is stored. content: the bytes of a file; extension: of its name, without a dot. shape: (H, W) or
    (H, W, 3) of its pixels. rules: what was done to it, for the table at the end of the stage."""

    content: bytes
    extension: str
    shape: tuple[int, ...]
    rules: frozenset[str]


@dataclass(frozen=True)
class Rendered:
    """The pixels of an image by a policy, uint8 (H, W) or (H, W, 3), and what was done to them. extension: of the
    original file's format, where its bytes give just these pixels, else None."""

    pixels: np.ndarray
    rules: frozenset[str]
    extension: str | None


def apply(picture: Picture, policy: PicturePolicy) -> Encoded:
    """The image as `policy` wants it stored. Raises ImageError for a file that cannot be decoded, or a bad box."""
    rendered = render(picture, policy)
    shape = rendered.pixels.shape
    if policy.encoding == "original" and rendered.extension is not None:
        return Encoded(picture.content, rendered.extension, shape, rendered.rules | {KEPT})
    content, extension = encode(rendered.pixels, policy.encoding)
    return Encoded(content, extension, shape, rendered.rules | {ENCODED})


def render(picture: Picture, policy: PicturePolicy) -> Rendered:
    """Decode, crop and scale. Raises as `apply` does."""
    found = examine(picture.content, policy.colour, picture.name)
    rules = set(found.rules)
    if policy.colour == "grey" and found.mode not in ("1", "L", "LA") and not found.mode.startswith("I"):
        rules.add(GREYED)
    pixels = found.pixels
    if policy.crop and picture.box is not None:
        pixels = _crop(pixels, picture, rules)
    pixels = _scale(pixels, policy.size, rules)
    # A palette without transparency is the one rule by which every decoder goes.
    same = rules <= {PALETTE}
    extension = _NETPBM.get(found.mode) if found.form == "PPM" else _EXTENSION.get(found.form)
    return Rendered(pixels, frozenset(rules), extension if same else None)


def encode(pixels: np.ndarray, encoding: str) -> tuple[bytes, str]:
    """The bytes of an image file of `pixels` uint8 (H, W) or (H, W, 3), and its extension. encoding: "png" and
    "original" are PNG, "jpeg:QUALITY" is JPEG with colour at full resolution. Raises InputError for another shape."""
    if pixels.dtype != np.uint8 or (pixels.ndim != 2 and pixels.shape[2:] != (3,)):
        raise InputError(f"only grey (H, W) and RGB (H, W, 3) uint8 pixels have an image file, not {pixels.shape}")
    image, buffer = Image.fromarray(np.ascontiguousarray(pixels)), io.BytesIO()
    form, _, quality = encoding.partition(":")
    if form == "jpeg":
        image.save(buffer, "JPEG", quality=int(quality), subsampling=0)
        return buffer.getvalue(), "jpg"
    image.save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue(), "png"


def _crop(pixels: np.ndarray, picture: Picture, rules: set[str]) -> np.ndarray:
    """The box's pixels: its edges rounded to whole pixels, and clipped to the image."""
    assert picture.box is not None  # the caller has looked
    height, width = pixels.shape[:2]
    if not all(map(math.isfinite, picture.box)):
        raise ImageError(picture.name, f"box not finite ({picture.box})")
    x1, y1, x2, y2 = (math.floor(edge + 0.5) for edge in picture.box)
    left, top, right, bottom = max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)
    if right <= left or bottom <= top:
        raise ImageError(picture.name, f"box outside the image ({picture.box} of {width} x {height} pixels)")
    if (left, top, right, bottom) != (x1, y1, x2, y2):
        rules.add(CLIPPED)
    if (right - left, bottom - top) != (width, height):
        rules.add(CROPPED)
    return pixels[top:bottom, left:right]


def _scale(pixels: np.ndarray, size: str, rules: set[str]) -> np.ndarray:
    """By `PicturePolicy.size`; bilinear, averaging over the pixels that fall together."""
    rule, _, number = size.partition(":")
    if rule == "keep":
        return pixels
    side, (height, width) = int(number), pixels.shape[:2]
    shorter = min(height, width)
    if shorter > side or (shorter < side and rule == "square"):
        rules.add(SHRUNK if shorter > side else ENLARGED)
        scaled = (round(width * side / shorter), round(height * side / shorter))
        image = Image.fromarray(np.ascontiguousarray(pixels))
        pixels = np.array(image.resize(scaled, Image.Resampling.BILINEAR))
        height, width = pixels.shape[:2]
    if rule == "square" and height != width:
        rules.add(SQUARED)
        top, left = (height - side) // 2, (width - side) // 2
        pixels = pixels[top : top + side, left : left + side]
    return pixels
