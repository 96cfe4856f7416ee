"""Seeded views of a photograph: random homographies, and changes of light, sharpness and noise.

Strength 1 is moderate: what two photographs of one wall, taken from a few steps apart with two cameras, differ by.
Strength 0 changes nothing; both strengths may go up to 2.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import cv2
import numpy as np

from hardmine.pipeline.frames import low_pass, map_points

MAX_STRENGTH = 2.0


def generator_for(seed: int, *key: bytes | int) -> np.random.Generator:
    """The random generator that belongs to (seed, key): the same for the same, whatever else was drawn before."""
    text = b"".join(b"%d:%b," % (len(part), part) for part in (k if isinstance(k, bytes) else b"%d" % k for k in key))
    digest = hashlib.blake2b(b"%d;%b" % (seed, text), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


@dataclass(frozen=True)
class Warp:
    """A view of a photograph: homography (3, 3) from its pixels to the view's, and the view's (height, width), which
    is just large enough to hold the whole photograph."""

    homography: np.ndarray
    shape: tuple[int, int]

    def render(self, photograph: np.ndarray) -> np.ndarray:
        """The view, uint8 `shape`, of a photograph uint8 (H, W): low-passed where it shrinks, reflected outside."""
        h, w = photograph.shape
        middle = np.array([(w - 1) / 2, (h - 1) / 2])
        steps = map_points(middle + np.array([[0, 0], [1, 0], [0, 1]]), self.homography)
        scale = np.sqrt(np.abs(np.linalg.det(steps[1:] - steps[0])))
        source = low_pass(photograph, 1 / scale)
        size = self.shape[::-1]
        return cv2.warpPerspective(source, self.homography, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)


def random_warp(generator: np.random.Generator, shape: tuple[int, ...], strength: float) -> Warp:
    """A random view of a photograph of `shape` (H, W).

    At strength 1: turned by up to 30 degrees, scaled by up to half an octave, squeezed by up to 1.3 along a random
    direction (tilt), and with a horizon at least ten half diagonals away (perspective). All about the middle."""
    h, w = shape[:2]
    turn = strength * np.deg2rad(generator.uniform(-30, 30))
    scale = 2 ** (strength * generator.uniform(-0.5, 0.5))
    tilt = 1.3 ** (strength * generator.uniform(0, 1))
    direction = generator.uniform(0, np.pi)
    horizon = strength * generator.uniform(0, 0.1)
    towards = generator.uniform(0, 2 * np.pi)
    squeeze = _rotation(direction) @ np.diag([scale / np.sqrt(tilt), scale * np.sqrt(tilt), 1]) @ _rotation(-direction)
    perspective = np.eye(3)
    perspective[2, :2] = horizon * np.cos(towards), horizon * np.sin(towards)
    half = np.hypot(h, w) / 2
    to_middle = np.array([[1, 0, -(w - 1) / 2], [0, 1, -(h - 1) / 2], [0, 0, half]]) / half
    view = np.diag([half, half, 1]) @ _rotation(turn) @ squeeze @ perspective @ to_middle
    edge = np.array([[-0.5, -0.5], [w - 0.5, -0.5], [w - 0.5, h - 0.5], [-0.5, h - 0.5]])
    seen = map_points(edge, view)
    low, high = np.floor(seen.min(axis=0)), np.ceil(seen.max(axis=0))
    shift = np.eye(3)
    shift[:2, 2] = -low
    width, height = (high - low + 1).astype(int)
    return Warp(shift @ view, (int(height), int(width)))


def _rotation(angle: float) -> np.ndarray:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])


def relight(image: np.ndarray, generator: np.random.Generator, strength: float) -> np.ndarray:
    """The image uint8 (H, W) as another camera in another light would have it.

    At strength 1: blurred by a sigma of up to 1.2 pixels, gamma and contrast changed by up to half an octave,
    brightness by up to 0.15 of the range, and Gaussian noise of a sigma of up to 6 grey levels. Clipped to 0..255."""
    if strength == 0:
        return image
    blur = strength * generator.uniform(0, 1.2)
    gamma, contrast = 2 ** (strength * generator.uniform(-0.5, 0.5, 2))
    brightness = strength * generator.uniform(-0.15, 0.15)
    noise = strength * generator.uniform(0, 6)
    curve = 255 * (((np.arange(256) / 255) ** gamma - 0.5) * contrast + 0.5 + brightness)
    if blur > 0.2:  # less is no change in 8 bits
        image = cv2.GaussianBlur(image, (0, 0), blur, borderType=cv2.BORDER_REFLECT_101)
    exposed = curve.astype(np.float32)[image]
    exposed += np.float32(noise) * generator.standard_normal(image.shape, dtype=np.float32)
    return np.rint(exposed.clip(0, 255)).astype(np.uint8)
