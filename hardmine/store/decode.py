"""From an image file's bytes to pixels, by one policy wherever hardmine reads an image: ingest, stores, evaluation.

The policy: the first frame of the file; turned as its EXIF orientation says; transparent pixels composited over white;
16-bit values divided by 256 (v >> 8), never clipped; colours of any kind (palette, CMYK, YCbCr) to RGB, embedded colour
profiles not applied; grey is ITU-R BT.601 luma, (299 R + 587 G + 114 B) / 1000. A file that ends too early is an error,
never a picture with a grey rest.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from hardmine.errors import InputError

Colour = Literal["rgb", "grey"]

ORIENTATION = "EXIF orientation applied"
ALPHA = "transparency laid over white"
SIXTEEN = "16 bits scaled to 8"
CMYK = "CMYK converted"
PALETTE = "palette converted"
OTHER_COLOUR = "other colour space converted"
FRAMES = "first frame of several taken"
RULES = (ORIENTATION, ALPHA, SIXTEEN, CMYK, PALETTE, OTHER_COLOUR, FRAMES)

_ORIENTATION_TAG, _BITS_TAG = 0x0112, 258
_WIDE = 65535  # the largest 16-bit value


class ImageError(InputError):
    """One image that cannot be used. `reason`: one line without the file's name, for a list of rejects."""

    def __init__(self, path: str | bytes | os.PathLike[str], reason: str):
        super().__init__(f"{printable(path)}: {reason}")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type[ImageError], tuple[str | bytes | os.PathLike[str], str]]:
        return ImageError, (self.path, self.reason)


@dataclass(frozen=True)
class Decoded:
    """pixels: uint8 (H, W) or (H, W, 3). rules: which of `RULES` changed them. form: Pillow's name of the format.
    mode: Pillow's mode of the file. Without rules, any other decoder gives the same pixels."""

    pixels: np.ndarray
    rules: frozenset[str]
    form: str
    mode: str


def printable(path: str | bytes | os.PathLike[str]) -> str:
    """A file's name for messages: bytes that are not UTF-8 as \\xNN, so that printing it never fails."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def decode(content: bytes, colour: Colour, name: str | bytes | os.PathLike[str] = b"image") -> np.ndarray:
    """The pixels of an image file's `content`, uint8 (H, W) for "grey" or (H, W, 3) for "rgb", by the policy above.

    Raises ImageError with `name`, the cause and the byte count."""
    return examine(content, colour, name).pixels


def examine(content: bytes, colour: Colour, name: str | bytes | os.PathLike[str] = b"image") -> Decoded:
    """`decode`, with what it met. Raises ImageError."""
    size = f"{len(content):,} bytes"
    try:
        with Image.open(io.BytesIO(content)) as image:
            form, mode, bits = image.format or "", image.mode, _bits(image, content)
            wide = _wide_ppm(image, content) if form == "PPM" and bits == 16 else None
            image.load()
            rules = _rules_met(image, bits)
            return Decoded(_pixels(image if wide is None else wide, colour, rules), rules, form, mode)
    except MemoryError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(name, f"not an image, or a damaged one: no known format ({size})") from error
    except Image.DecompressionBombError as error:
        raise ImageError(name, f"refused: too many pixels ({size}; {error})") from error
    except Exception as error:  # decoders raise whatever they like on damaged files
        truncated = isinstance(error, EOFError) or "truncated" in str(error).lower()
        cause = "truncated" if truncated else "cannot be decoded"
        raise ImageError(name, f"{cause} ({size}; {type(error).__name__}: {error})") from error


def _pixels(image: Image.Image, colour: Colour, rules: frozenset[str]) -> np.ndarray:
    if ORIENTATION in rules:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits, or 32 that hold 16
        grey = _eight_bits(image)
        return grey if colour == "grey" else np.repeat(grey[..., None], 3, axis=2)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed white; convert it to 8 or 16 bits")
    if ALPHA in rules:
        over = Image.new("RGBA", image.size, "white")
        over.alpha_composite(image.convert("RGBA"))
        image = over
    if image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    wanted = "L" if colour == "grey" else "RGB"
    return np.array(image if image.mode == wanted else image.convert(wanted))


def _eight_bits(image: Image.Image) -> np.ndarray:
    values = np.asarray(image)
    if values.min() < 0 or values.max() > _WIDE:
        raise ValueError(f"32-bit values from {values.min()} to {values.max()}; convert it to 8 or 16 bits")
    grey = (values >> 8).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[values == clear] = 255
    return grey


def _wide_ppm(image: ImageFile.ImageFile, content: bytes) -> Image.Image:
    """A 16-bit colour PPM scaled by the policy; Pillow would round v / 257."""
    width, height = image.size
    needed = image.tile[0].offset + 6 * width * height
    if len(content) < needed:
        raise EOFError(f"{needed:,} bytes are needed")
    values = np.frombuffer(content, ">u2", 3 * width * height, image.tile[0].offset)
    return Image.fromarray((values >> 8).astype(np.uint8).reshape(height, width, 3))


def _rules_met(image: Image.Image, bits: int) -> frozenset[str]:
    met = {
        ORIENTATION: image.getexif().get(_ORIENTATION_TAG, 1) in range(2, 9),
        ALPHA: image.has_transparency_data and not _opaque(image),
        SIXTEEN: bits == 16 or image.mode.startswith("I"),
        CMYK: image.mode == "CMYK",
        PALETTE: image.mode in ("P", "PA"),
        OTHER_COLOUR: image.mode in ("YCbCr", "LAB", "HSV"),
        FRAMES: image.format != "MPO" and getattr(image, "is_animated", False),  # an MPO is a JPEG with a preview
    }
    return frozenset(rule for rule, applies in met.items() if applies)


def _opaque(image: Image.Image) -> bool:
    if image.mode.startswith("I"):
        return False
    return image.convert("RGBA").getchannel("A").getextrema()[0] == 255


def _bits(image: ImageFile.ImageFile, content: bytes) -> int:
    """Bits of one value as the file has them: Pillow shows 16-bit colours as 8."""
    if image.format == "PNG":
        return content[24]  # IHDR is always first
    if image.format == "TIFF":
        return max(getattr(image, "tag_v2", {}).get(_BITS_TAG, (8,)))
    if image.format == "PPM" and image.tile[0].codec_name == "ppm":  # binary, neither 1 nor 8 bits
        return 16 if image.tile[0].args == ("RGB", _WIDE) else 8
    return 8
