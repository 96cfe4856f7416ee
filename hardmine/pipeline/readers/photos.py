"""`photos`: a folder of photographs, any size, any nesting; classes are spots of one photograph in seeded views.

Training material for anyone without correspondences. A spot is a SIFT frame of a photograph (`frames.detect`); its
patches are the spot in the photograph itself (view 0) and in `patches_per_class - 1` views of it: random homographies,
changes of light, sharpness and noise (`warps`), and errors of the frames as a detector makes them.

Every draw belongs to (seed, the photograph's relative name, view) alone: other photographs in the folder, and which
candidates are read together, change no pixel.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
from pydantic import Field

from hardmine.errors import InputError
from hardmine.pipeline import frames as fr
from hardmine.pipeline.images import POLICY, ImageError, decode_grey, list_images, printable, read_bytes, relative_name
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.spots import add_pairs
from hardmine.pipeline.readers.warps import MAX_STRENGTH, Warp, generator_for, random_warp, relight


class PhotosOptions(base.Options):
    """Options of `ingest photos`."""

    patches_per_class: int = Field(8, ge=2, description="patches of each spot: the photograph's and the views'")
    points_per_photo: int = Field(500, ge=1, description="the strongest spots of each photograph, at most")
    max_side: int = Field(1024, ge=64, description="larger photographs are shrunk to this many pixels first")
    warp: float = Field(1.0, ge=0, le=MAX_STRENGTH, description="strength of the homographies; 0 is none")
    photometric: float = Field(1.0, ge=0, le=MAX_STRENGTH, description="strength of light, blur and noise; 0 is none")
    frame_noise: float = Field(1.0, ge=0, le=3, description="1: 0.15 of the size, 12 degrees, 0.2 octaves (one sigma)")
    pairs: int = Field(5000, ge=0, description="evaluation pairs of each kind; 0 is no list")
    seed: int = Field(0, ge=0, description="of every random draw")


@dataclass(frozen=True)
class _Photograph:
    """What was found in one photograph: its file, its name below the source folder, the (H, W) it is worked on, and
    float64 (views, spots, 4) frames, each in the pixels of its view (view 0: the photograph as worked on)."""

    path: Path
    name: bytes
    shape: tuple[int, int]
    frames: np.ndarray


@base.readers.register("photos")
class Photos:
    """Candidates in order of photograph (byte-sorted names), spot (strongest first), view.

    Columns: image int64, the photograph's number among those that gave spots; view int16; frame float32 (N, 4), where
    the patch lies in the photograph, in pixels of the file's own size (EXIF orientation applied): for a view, its frame
    carried back through the view's homography. raw_label is the number of the spot; source is b"name#spot/view".
    A spot is kept if its patch lies inside the photograph in every view, so that every class is full.
    """

    Options: ClassVar[type[base.Options]] = PhotosOptions

    def __init__(self, src: Path, options: PhotosOptions):
        self.src, self.options = Path(src), options
        self._photographs: list[_Photograph] | None = None

    def candidates(self) -> base.Candidates:
        """Find the spots of every photograph. Raises MissingError / InputError where there is no photograph or spot."""
        paths, listed = list_images(self.src)
        counts: Counter[str] = Counter(listed)
        photographs: list[_Photograph] = []
        rejects: list[base.Reject] = []
        columns: list[np.ndarray] = []
        seen: set[bytes] = set()
        for path in paths:
            try:
                content = read_bytes(path)
                digest = hashlib.sha256(content).digest()
                if digest in seen:
                    counts["photographs that another one equals byte for byte (dropped)"] += 1
                    continue
                grey = decode_grey(content, path)
            except ImageError as error:
                rejects.append(base.Reject(relative_name(path, self.src), error.reason))
                continue
            seen.add(digest)
            photograph, column = self._find(path, grey, counts)
            if column.size:
                photographs.append(photograph)
                columns.append(column)
        if not photographs:
            raise InputError(self._nothing(len(paths), rejects, counts))
        self._photographs = photographs
        return self._gather(photographs, columns, paths, rejects, counts)

    def _find(self, path: Path, grey: np.ndarray, counts: Counter[str]) -> tuple[_Photograph, np.ndarray]:
        """The spots of one photograph, and their `frame` column (spots, views, 4) in the file's own pixels."""
        o = self.options
        name = relative_name(path, self.src)
        work = _shrink(grey, o.max_side)
        spots, same = fr.detect(work, reach=fr.REACH)
        views, back = [spots], [spots]
        visible = np.ones(len(spots), bool)
        for view in range(1, o.patches_per_class):
            warp = self._warp(name, view, work.shape)
            exact = fr.project(spots, warp.homography)
            noisy = fr.jitter(exact, generator_for(o.seed, name, view, b"frame noise"), o.frame_noise)
            undo = np.linalg.inv(warp.homography)
            visible &= fr.contains(work.shape, fr.map_points(fr.corners(noisy), undo)).all(axis=1)
            views.append(noisy)
            back.append(fr.project(noisy, undo))
        kept = np.flatnonzero(visible)[: o.points_per_photo]
        counts["photographs read"] += 1
        counts["points dropped: within half a size of a stronger one"] += same
        counts["points dropped: not inside the photograph in every view"] += int((~visible).sum())
        if not len(kept):
            counts["photographs without a usable point"] += 1
        elif len(kept) < o.points_per_photo:
            counts[f"photographs with fewer than {o.points_per_photo} points"] += 1
        scale = np.array(grey.shape[::-1]) / work.shape[::-1]
        column = np.stack(back)[:, kept].swapaxes(0, 1)
        column[..., :2] = (column[..., :2] + 0.5) * scale - 0.5
        column[..., 2] *= np.sqrt(scale.prod())
        return _Photograph(path, name, work.shape, np.stack(views)[:, kept]), column

    def _warp(self, name: bytes, view: int, shape: tuple[int, ...]) -> Warp:
        return random_warp(generator_for(self.options.seed, name, view, b"warp"), shape, self.options.warp)

    def _gather(
        self,
        photographs: list[_Photograph],
        columns: list[np.ndarray],
        paths: list[Path],
        rejects: list[base.Reject],
        counts: Counter[str],
    ) -> base.Candidates:
        views = self.options.patches_per_class
        spots = np.array([len(column) for column in columns])
        image = np.repeat(np.arange(len(spots)), spots)  # of each spot
        source = [
            b"%b#%d/%d" % (photograph.name, spot, view)
            for photograph, n in zip(photographs, spots, strict=True)
            for spot in range(n)
            for view in range(views)
        ]
        frame = np.concatenate([column.reshape(-1, 4) for column in columns]).astype(np.float32)
        worked = np.concatenate([photograph.frames[0] for photograph in photographs])
        found = base.Candidates(
            policy=POLICY,
            raw_label=np.repeat(np.arange(len(image)), views),
            source=np.array(source),
            pixel_shape=(fr.SIDE, fr.SIDE),
            columns={
                "image": np.repeat(image, views),
                "frame": frame,
                "view": np.tile(np.arange(views, dtype=np.int16), len(image)),
            },
            rejects=rejects,
            files=paths,
        )
        offsets = np.arange(len(image) + 1) * views
        generator = generator_for(self.options.seed, b"pairs")
        add_pairs(found.pairs, counts, self.options.pairs, offsets, image, worked, fr.REACH, generator)
        found.counts = {name: number for name, number in counts.items() if number}
        return found

    def _nothing(self, listed: int, rejects: list[base.Reject], counts: Counter[str]) -> str:
        first = f" The first: {printable(rejects[0].source)}: {rejects[0].reason}." if rejects else ""
        return (
            f"no usable point in {printable(self.src)}: {listed} photographs listed, {len(rejects)} could not be read, "
            f"{counts['photographs read']} read; {counts['points dropped: not inside the photograph in every view']} "
            f"points were too near the edge. Larger photographs, or a smaller warp or frame_noise, give more.{first}"
        )

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        """Yield (number, patch uint8 (64, 64)) in order; a Reject where the photograph can no longer be read."""
        if self._photographs is None:
            self.candidates()
        assert self._photographs is not None  # candidates() sets it
        views = self.options.patches_per_class
        starts = np.cumsum([0] + [views * p.frames.shape[1] for p in self._photographs])
        numbers = np.asarray(numbers, np.int64)
        owners = np.searchsorted(starts, numbers, side="right") - 1
        for owner, members in groupby(range(len(numbers)), key=owners.tolist().__getitem__):
            asked = numbers[list(members)]
            yield from self._read(self._photographs[owner], asked, asked - starts[owner])

    def _read(
        self, photograph: _Photograph, asked: np.ndarray, within: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        """The candidates `asked` of one photograph; `within`: spot * views + view of each. Each view is made once."""
        spot, view = np.divmod(within, self.options.patches_per_class)
        try:
            work = _shrink(decode_grey(read_bytes(photograph.path), photograph.path), self.options.max_side)
            if work.shape != photograph.shape:
                raise ImageError(photograph.path, "changed while it was being ingested; ingest again")
        except ImageError as error:
            for number, s, v in zip(asked.tolist(), spot, view, strict=True):
                yield number, base.Reject(b"%b#%d/%d" % (photograph.name, s, v), error.reason)
            return
        patches = np.empty((len(asked), fr.SIDE, fr.SIDE), np.uint8)
        for v in np.unique(view).tolist():
            which = np.flatnonzero(view == v)
            patches[which] = fr.cut(self._see(work, photograph.name, v), photograph.frames[v, spot[which]])
        yield from zip(asked.tolist(), patches, strict=True)

    def _see(self, work: np.ndarray, name: bytes, view: int) -> np.ndarray:
        """The photograph in one view, uint8."""
        if view == 0:
            return work
        seen = self._warp(name, view, work.shape).render(work)
        return relight(seen, generator_for(self.options.seed, name, view, b"light"), self.options.photometric)


def _shrink(grey: np.ndarray, max_side: int) -> np.ndarray:
    """The image, area-averaged down so that its longer side is at most `max_side` pixels."""
    if max(grey.shape) <= max_side:
        return grey
    factor = max_side / max(grey.shape)
    h, w = (max(1, round(side * factor)) for side in grey.shape)
    return cv2.resize(grey, (w, h), interpolation=cv2.INTER_AREA)
