"""`stereo`: a rectified pair and its disparity map; a class is a spot of the left photograph and its view in the right.

Real correspondences, most of them useless as they come: corners sit on depth edges, where the two patches show
different things and no descriptor can match them. So a spot is kept only where its patch spans little disparity and
hardly any of it is hidden, and the right frame gets a detector's error, since points carried over exactly are no test.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from hardmine.errors import InputError
from hardmine.pipeline import frames as fr
from hardmine.pipeline.images import POLICY, ImageError, printable, read_grey
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.spots import add_pairs
from hardmine.pipeline.readers.warps import generator_for

_GRID = 33  # a patch is looked at in so many points each way
_COVERED = 1.0  # a point is hidden where another one is nearer by more than so many pixels of disparity


class StereoOptions(base.Options):
    """Options of `ingest stereo`."""

    left: str = Field("left.png", description="file of the left photograph, in the source folder")
    right: str = Field("right.png", description="file of the right photograph")
    disparity: str = Field("disparity.npz", description="disparity of the left photograph's pixels: .npy, or .npz")
    points: int = Field(2000, ge=1, description="the strongest spots of the left photograph, at most")
    contrast: float = Field(0.01, gt=0, description="OpenCV SIFT's threshold of contrast")
    span: float = Field(0.15, gt=0, description="most a patch may span in disparity, in widths of the patch")
    hidden: float = Field(0.1, ge=0, lt=1, description="most of a patch that may be hidden, or of unknown disparity")
    frame_noise: float = Field(1.0, ge=0, le=3, description="1: 0.15 of the size, 12 degrees, 0.2 octaves (one sigma)")
    pairs: int = Field(5000, ge=0, description="evaluation pairs of each kind; 0 is no list")
    seed: int = Field(0, ge=0, description="of the frame noise and the pairs")


@base.readers.register("stereo")
class Stereo:
    """Candidates in order of spot (strongest first), left before right: every class has two patches.

    disparity: (H, W) numbers, x_left - x_right of each pixel of the left photograph; not finite or negative: unknown.
    A spot is carried over with its size and angle; frame noise (`frames.jitter`) then moves the right frame. It is
    kept if its patch lies inside both photographs, its middle is seen in both, at most the fraction `hidden` of it is
    hidden in the right one or of unknown disparity, and the others' disparities lie within `span` widths of the patch.
    Columns: image int64 (0 left, 1 right); frame float32 (N, 4), in pixels of that photograph. raw_label is the number
    of the spot; source is b"file#spot".
    """

    Options: ClassVar[type[base.Options]] = StereoOptions

    def __init__(self, src: Path, options: StereoOptions):
        self.src, self.options = Path(src), options
        self.files = (self.src / options.left, self.src / options.right)
        self._frames: np.ndarray | None = None  # float64 (spots, 2, 4)

    def candidates(self) -> base.Candidates:
        """Find the spots. Raises InputError where a file cannot be used, the sizes differ, or no spot is left."""
        o = self.options
        left, disparity = self._load()
        found, same = fr.detect(left, reach=fr.REACH, contrast_threshold=o.contrast)
        span, hidden = look_at_patches(visible(disparity), found)
        seen, flat = hidden <= o.hidden, span <= o.span * fr.REACH * found[:, 2]
        kept = found[seen & flat]
        noisy = fr.jitter(carry(disparity, kept), generator_for(o.seed, b"frame noise"), o.frame_noise)
        fits = fr.inside(noisy, left.shape)
        frames = np.stack([kept[fits], noisy[fits]], axis=1)[: o.points]
        counts = {
            "points dropped: within half a size of a stronger one": same,
            "points dropped: hidden in the right photograph, or of unknown disparity": int((~seen).sum()),
            f"points dropped: disparity spans more than {o.span:g} of the patch": int((seen & ~flat).sum()),
            "points dropped: not inside the right photograph": int((~fits).sum()),
        }
        if not len(frames):
            said = "; ".join(f"{name}: {number}" for name, number in counts.items())
            raise InputError(f"no usable point in {printable(self.src)} ({len(found)} found). {said}")
        self._frames = frames
        names = [o.left.encode(), o.right.encode()]
        result = base.Candidates(
            policy=POLICY,
            raw_label=np.repeat(np.arange(len(frames)), 2),
            source=np.array([b"%b#%d" % (name, spot) for spot in range(len(frames)) for name in names]),
            pixel_shape=(fr.SIDE, fr.SIDE),
            columns={"image": np.tile([0, 1], len(frames)), "frame": frames.reshape(-1, 4).astype(np.float32)},
            files=[*self.files, self.src / o.disparity],
        )
        offsets, group = np.arange(len(frames) + 1) * 2, np.zeros(len(frames), np.int64)
        generator = generator_for(o.seed, b"pairs")
        add_pairs(result.pairs, counts, o.pairs, offsets, group, frames[:, 0], fr.REACH, generator)
        result.counts = {name: number for name, number in counts.items() if number}
        return result

    def _load(self) -> tuple[np.ndarray, np.ndarray]:
        """The left photograph, and the disparity; both of the right photograph's size."""
        o = self.options
        left, right = (read_grey(file) for file in self.files)
        disparity = read_disparity(self.src / o.disparity)
        for name, shape in ((o.right, right.shape), (o.disparity, disparity.shape)):
            if shape != left.shape:
                raise InputError(
                    f"{printable(self.src / name)} is {shape[1]}x{shape[0]}, but {o.left} {left.shape[1]}x"
                    f"{left.shape[0]} pixels: a rectified pair and its disparity map are of one size"
                )
        return left, disparity

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        """Yield (number, patch uint8 (64, 64)) in order; a Reject where a photograph can no longer be read."""
        if self._frames is None:
            self.candidates()
        assert self._frames is not None  # candidates() sets it
        numbers = np.asarray(numbers, np.int64)
        spot, side = np.divmod(numbers, 2)
        result: list[np.ndarray | base.Reject] = [base.Reject(b"", "")] * len(numbers)
        for image in np.unique(side).tolist():
            file, which = self.files[image], np.flatnonzero(side == image)
            try:
                patches = fr.cut(read_grey(file), self._frames[spot[which], image])
            except ImageError as error:
                for i in which.tolist():
                    result[i] = base.Reject(b"%b#%d" % (file.name.encode(), spot[i]), error.reason)
                continue
            for i, patch in zip(which.tolist(), patches, strict=True):
                result[i] = patch
        yield from zip(numbers.tolist(), result, strict=True)


def read_disparity(file: Path) -> np.ndarray:
    """The disparity map float32 (H, W) of an .npy file, or of an .npz with one array; NaN where it is unknown.

    Raises InputError for a file that is not there, is neither, or does not hold one array (H, W) of real numbers."""
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded as arrays:
                loaded = arrays[arrays.files[0]] if len(arrays.files) == 1 else np.empty(len(arrays.files), object)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{printable(file)} cannot be read as .npy or .npz ({error})") from error
    if loaded.dtype == object:
        raise InputError(f"{printable(file)} has {len(loaded)} arrays; a disparity map alone is expected")
    if loaded.ndim != 2 or loaded.dtype.kind not in "iuf" or not loaded.size:
        raise InputError(f"{printable(file)} holds {loaded.dtype} {loaded.shape}; real numbers (H, W) are expected")
    disparity = loaded.astype(np.float32)
    return np.where(np.isfinite(disparity) & (disparity >= 0), disparity, np.float32(np.nan))


def visible(disparity: np.ndarray) -> np.ndarray:
    """The disparity (H, W) with NaN also where the point is outside the right photograph, or a nearer one covers it."""
    height, width = disparity.shape
    y = np.repeat(np.arange(height), width).reshape(height, width)
    lands = np.arange(width) - np.rint(disparity)
    inside = lands >= 0  # and not unknown
    x = np.where(inside, lands, 0).astype(np.int64)
    nearest = np.full(disparity.shape, -np.inf, np.float32)
    np.maximum.at(nearest, (y[inside], x[inside]), disparity[inside])
    return np.where(inside & (disparity >= nearest[y, x] - _COVERED), disparity, np.float32(np.nan))


def look_at_patches(disparity: np.ndarray, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the patch of each frame (n, 4) sees of a disparity map: the largest less the smallest value, (n,), and the
    fraction of it without one, (n,); both infinite where there is none in the middle. The patches lie inside it."""
    corner = fr.corners(frames)
    along, down = (corner[:, i] - corner[:, 0] for i in (1, 3))
    line = np.linspace(0, 1, _GRID)
    u, v = np.tile(line, _GRID)[:, None], np.repeat(line, _GRID)[:, None]
    seen = at(disparity, corner[:, None, 0] + u * along[:, None] + v * down[:, None])
    known = np.isfinite(seen)
    span = np.where(known, seen, -np.inf).max(axis=1) - np.where(known, seen, np.inf).min(axis=1)
    middle = np.isfinite(at(disparity, frames[:, :2]))
    return np.where(middle, span, np.inf), np.where(middle, 1 - known.mean(axis=1), np.inf)


def carry(disparity: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Frames (n, 4) of the left photograph in the right one: x less the disparity; y, size and angle as they were."""
    carried = frames.astype(np.float64, copy=True)
    carried[:, 0] -= at(disparity, frames[:, :2])
    return carried


def at(disparity: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The disparity of the pixel at each of the points (..., 2), x and y; of the nearest pixel outside the map."""
    x, y = np.moveaxis(np.rint(points).astype(np.int64), -1, 0)
    height, width = disparity.shape
    return disparity[y.clip(0, height - 1), x.clip(0, width - 1)]
