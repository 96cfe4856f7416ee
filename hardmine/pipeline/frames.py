"""Keypoint frames: finding them, carrying them through a homography, and cutting upright patches at them.

A frame is a row (x, y, size, angle) of a float64 (n, 4) array: centre in pixels (the centre of the top left pixel is
(0, 0)), OpenCV's keypoint size in pixels (a diameter), and the angle in radians, from the x axis towards the y axis
(which points down). A patch is a square `reach` sizes wide, turned so that its x axis has the frame's angle.

    frames, dropped = detect(image, 1000, reach=REACH)
    patches = cut(image, frames)                    # uint8 (n, 64, 64)
"""

from __future__ import annotations

import cv2
import numpy as np
from scipy.spatial import cKDTree

from hardmine.errors import InputError

SIDE = 64
REACH = 6.0  # patch width in keypoint sizes: 12 times the scale sigma, about the support of a SIFT descriptor

_LEVELS_PER_OCTAVE = 3
_BLUR = 0.6  # blur (sigma) of an image in its own pixels; also what every pyramid level is given in its pixels


def detect(
    image: np.ndarray,
    limit: int | None = None,
    *,
    reach: float | None = None,
    contrast_threshold: float = 0.02,
    min_size: float = 3.0,
    max_size: float = 40.0,
) -> tuple[np.ndarray, int]:
    """SIFT frames of a grey image, strongest first, one per spot; and how many were dropped as the same spot.

    image: uint8 (H, W). limit: at most so many frames (None: all). reach: only frames whose patch lies inside the
    image. contrast_threshold: OpenCV SIFT's. min_size, max_size: keypoint sizes kept, in pixels.
    One per spot: a frame is dropped when it lies within half a keypoint size (the larger of the two) of a stronger one
    that was kept; SIFT's second orientations go the same way. Ties in strength are broken by position, size and angle.
    Returns frames float64 (n, 4) and the count. Raises InputError if the image is not grey uint8.
    Source: D. Lowe, Distinctive image features from scale-invariant keypoints, IJCV 2004, as in OpenCV.
    """
    _require_grey(image)
    sift = cv2.SIFT.create(contrastThreshold=contrast_threshold, enable_precise_upscale=True)
    keys = [(*k.pt, k.size, np.deg2rad(k.angle), k.response) for k in sift.detect(image, None)]
    found = np.array(keys, np.float64).reshape(-1, 5)
    found = found[(found[:, 2] >= min_size) & (found[:, 2] <= max_size)]
    if reach is not None:
        found = found[inside(found[:, :4], image.shape, reach)]
    x, y, size, angle, response = found.T
    found = found[np.lexsort((angle, size, y, x, -response)), :4]
    keep = _first_of_each_spot(found)
    return found[keep][:limit], int((~keep).sum())


def _first_of_each_spot(frames: np.ndarray) -> np.ndarray:
    """bool (n,): which frames to keep, of frames in falling order of strength."""
    keep = np.ones(len(frames), bool)
    if len(frames) < 2:
        return keep
    size = frames[:, 2]
    pairs = cKDTree(frames[:, :2]).query_pairs(size.max() / 2, output_type="ndarray")
    strong, weak = pairs.min(axis=1), pairs.max(axis=1)
    distance = np.hypot(*(frames[strong, :2] - frames[weak, :2]).T)
    near = distance <= np.maximum(size[strong], size[weak]) / 2
    strong, weak = strong[near], weak[near]
    order = np.lexsort((weak, strong))
    strong, weak = strong[order], weak[order]
    start = np.searchsorted(strong, np.arange(len(frames) + 1))
    for i in np.unique(strong):
        if keep[i]:
            keep[weak[start[i] : start[i + 1]]] = False
    return keep


def map_points(points: np.ndarray, homography: np.ndarray) -> np.ndarray:
    """Points float64 (..., 2) sent through a (3, 3) homography that acts on columns (x, y, 1)."""
    h = homography
    with np.errstate(divide="ignore", invalid="ignore"):
        return (points @ h[:2, :2].T + h[:2, 2]) / (points @ h[2, :2] + h[2, 2])[..., None]


def project(frames: np.ndarray, homography: np.ndarray) -> np.ndarray:
    """Frames (n, 4) as they are seen through a homography (3, 3): its local similarity at each frame.

    The size grows by the root of the local area's growth, and the angle follows the frame's own direction. A frame that
    the homography mirrors or sends behind the camera becomes NaN, and so lies inside no image.
    """
    h = homography
    x, y, size, angle = frames.T
    with np.errstate(divide="ignore", invalid="ignore"):
        w = h[2, 0] * x + h[2, 1] * y + h[2, 2]
        u, v = map_points(frames[:, :2], h).T
        # the derivative of (u, v) by (x, y)
        ux, uy = (h[0, 0] - u * h[2, 0]) / w, (h[0, 1] - u * h[2, 1]) / w
        vx, vy = (h[1, 0] - v * h[2, 0]) / w, (h[1, 1] - v * h[2, 1]) / w
        area = ux * vy - uy * vx
        cos, sin = np.cos(angle), np.sin(angle)
        turned = np.arctan2(vx * cos + vy * sin, ux * cos + uy * sin)
        seen = np.stack([u, v, size * np.sqrt(area), turned], axis=1)
    seen[~((area > 0) & np.isfinite(seen).all(axis=1))] = np.nan
    return seen


def jitter(frames: np.ndarray, generator: np.random.Generator, amount: float = 1.0) -> np.ndarray:
    """Frames (n, 4) with a detector's error added: at amount 1, one sigma is 0.15 of the size in x and in y, 12 degrees
    and 0.2 octaves. One row of four draws per frame, in order, so that a longer list begins as a shorter one does."""
    draw = generator.standard_normal((len(frames), 4)) * amount
    noisy = frames.astype(np.float64, copy=True)
    noisy[:, :2] += 0.15 * frames[:, 2:3] * draw[:, :2]
    noisy[:, 2] *= 2 ** (0.2 * draw[:, 2])
    noisy[:, 3] += np.deg2rad(12) * draw[:, 3]
    return noisy


def corners(frames: np.ndarray, reach: float = REACH) -> np.ndarray:
    """The four corners of each frame's patch, float64 (n, 4, 2), in pixels of the image."""
    size, angle = frames[:, 2], frames[:, 3]
    half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (0.5 * reach)
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], axis=1)  # (n, 2, 2)
    return frames[:, None, :2] + size[:, None, None] * np.einsum("nij,kj->nki", turn, half)


def contains(shape: tuple[int, ...], points: np.ndarray) -> np.ndarray:
    """Which of the points (..., 2) lie on an image of `shape` (H, W): bool (...); never a NaN."""
    high = np.array([shape[1], shape[0]]) - 0.5
    return np.all((points >= -0.5) & (points <= high), axis=-1)


def inside(frames: np.ndarray, shape: tuple[int, ...], reach: float = REACH) -> np.ndarray:
    """Which frames' patches lie wholly on an image of `shape` (H, W): bool (n,)."""
    return np.all(contains(shape, corners(frames, reach)), axis=1)


def cut(image: np.ndarray, frames: np.ndarray, side: int = SIDE, reach: float = REACH) -> np.ndarray:
    """Upright patches uint8 (n, side, side) at frames (n, 4) of a grey image uint8 (H, W).

    A patch is `reach` times the frame's size wide. The image is low-passed before it is sampled: each patch comes from
    the level of a Gaussian pyramid (three levels per octave, built once per call) whose blur fits the patch's sampling
    step, by bilinear interpolation. Outside the image its reflection is seen.
    Raises InputError for an image that is not grey uint8, or a frame that is not finite or has no size.
    """
    _require_grey(image)
    frames = np.asarray(frames, np.float64).reshape(-1, 4)
    bad = np.flatnonzero(~(np.isfinite(frames).all(axis=1) & (frames[:, 2] > 0)))
    if len(bad):
        raise InputError(f"frame {bad[0]} is {frames[bad[0]].tolist()}: x, y, size and angle must be finite, size > 0")
    pyramid = _Pyramid(image)
    patches = np.empty((len(frames), side, side), np.uint8)
    step = reach * frames[:, 2] / side
    levels = np.maximum(np.rint(_LEVELS_PER_OCTAVE * np.log2(step)), 0).astype(int)
    shrink = 2.0 ** -(levels // _LEVELS_PER_OCTAVE)
    along = (step * shrink)[:, None] * np.stack([np.cos(frames[:, 3]), np.sin(frames[:, 3])], axis=1)
    turn = np.stack([along, along[:, ::-1] * [-1, 1]], axis=2)  # columns: the patch's x axis, its y axis
    origin = frames[:, :2] * shrink[:, None] - turn.sum(axis=2) * ((side - 1) / 2)
    matrix = np.concatenate([turn, origin[:, :, None]], axis=2)  # (n, 2, 3): patch pixel -> level pixel
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    for i, level in enumerate(levels):
        source = pyramid.level(int(level))
        patches[i] = cv2.warpAffine(source, matrix[i], (side, side), flags=how, borderMode=cv2.BORDER_REFLECT_101)
    return patches


class _Pyramid:
    """Low-passed copies of an image, made when first asked for: level k suits a sampling step of 2**(k/3) pixels, and
    is halved k // 3 times. Halving keeps the even pixels, so that pixel (x, y) of a copy lies at (2x, 2y) above it."""

    def __init__(self, image: np.ndarray):
        self._octaves = [image]
        self._levels: dict[int, np.ndarray] = {}

    def level(self, k: int) -> np.ndarray:
        if k not in self._levels:
            octave, part = divmod(k, _LEVELS_PER_OCTAVE)
            while len(self._octaves) <= octave:
                self._octaves.append(np.ascontiguousarray(low_pass(self._octaves[-1], 2.0)[::2, ::2]))
            self._levels[k] = low_pass(self._octaves[octave], 2 ** (part / _LEVELS_PER_OCTAVE))
        return self._levels[k]


def low_pass(image: np.ndarray, step: float) -> np.ndarray:
    """The image (H, W) blurred as sampling it every `step` pixels needs; the image itself for a step of 1 or less."""
    if step <= 1:
        return image
    return cv2.GaussianBlur(image, (0, 0), _BLUR * np.sqrt(step * step - 1), borderType=cv2.BORDER_REFLECT_101)


def _require_grey(image: np.ndarray) -> None:
    if image.ndim != 2 or image.dtype != np.uint8 or not image.size:
        raise InputError(f"a grey uint8 image (H, W) is needed, not {image.dtype} {image.shape}; read it by read_grey")
