"""`sequences`: image sequences with homographies (HPatches and Oxford naming, see `sequence_folders`).

Every image is detected by itself; a class is a spot of image 1 with the detections that land on it in the other images,
so that its patches differ as much as real detections do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Numbers
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field
from scipy.spatial import cKDTree

from hardmine.errors import InputError
from hardmine.pipeline import frames as fr
from hardmine.pipeline.images import POLICY, ImageError, printable, read_grey, relative_name
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.sequence_folders import Sequence, find_sequences
from hardmine.pipeline.readers.spots import add_pairs
from hardmine.pipeline.readers.warps import generator_for

MAX_PIXELS, MAX_SIZES, MAX_OCTAVES, MAX_TURN = 5.0, 0.8, 0.5, np.deg2rad(22.5)


class SequencesOptions(base.Options):
    """Options of `ingest sequences`."""

    points: int = Field(2000, ge=1, description="the strongest spots of each image 1, at most")
    frame_noise: float = Field(0.0, ge=0, le=3, description="errors added to the detections; 1: 0.15 of the size, ...")
    pairs: int = Field(5000, ge=0, description="evaluation pairs of each kind; 0 is no list")
    seed: int = Field(0, ge=0, description="of the frame noise and the pairs")


@dataclass(frozen=True)
class _Found:
    """The classes of one sequence, patch by patch: the spot (rising), the image and the frame of each."""

    spot: np.ndarray  # int64 (N,), 0..S-1
    image: np.ndarray  # int64 (N,), numbers as in the files' names
    frame: np.ndarray  # float64 (N, 4)


@base.readers.register("sequences")
class Sequences:
    """Candidates in order of sequence (byte-sorted), spot (strongest first in image 1), image.

    A detection belongs to the spot it lands on if, carried into its image, the spot is within 5 pixels and 0.8 sizes,
    half an octave and 22.5 degrees of it, and each is the nearest such one of the other; so a detection belongs to one
    class only. Spots with one patch are dropped and counted. With `frame_noise`, the frames of the other images get
    seeded errors (`frames.jitter`); it is 0 unless asked for, since independent detections carry errors of their own.
    Columns: image int64, numbered over all images of all sequences; frame float32 (N, 4), pixels of that image.
    raw_label is the number of the spot; source is b"sequence/image#spot".
    """

    Options: ClassVar[type[base.Options]] = SequencesOptions

    def __init__(self, src: Path, options: SequencesOptions):
        self.src, self.options = Path(src), options
        self._found: list[tuple[Sequence, _Found]] | None = None

    def candidates(self) -> base.Candidates:
        """The classes of every sequence. Raises as `find_sequences` does, and InputError where there is no class."""
        sequences, rejects, listed = find_sequences(self.src)
        counts: Counter[str] = Counter(listed)
        found: list[tuple[Sequence, _Found]] = []
        for sequence in sequences:
            classes = self._match(sequence, rejects, counts)
            if len(classes.spot):
                found.append((sequence, classes))
        if not found:
            first = f" The first reject: {printable(rejects[0].source)}: {rejects[0].reason}." if rejects else ""
            raise InputError(
                f"no spot of {printable(self.src)} is seen twice: {len(sequences)} usable sequences, "
                f"{counts['spots seen in image 1 only (dropped)']} spots seen in image 1 only.{first}"
            )
        self._found = found
        return self._gather(sequences, found, rejects, counts)

    def _match(self, sequence: Sequence, rejects: list[base.Reject], counts: Counter[str]) -> _Found:
        o = self.options
        name = relative_name(sequence.folder, self.src)
        nothing = _Found(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4)))
        spots, parts = np.zeros((0, 4)), []
        for k, path in sorted(sequence.images.items()):
            try:
                image = read_grey(path)
            except ImageError as error:
                rejects.append(base.Reject(relative_name(path, self.src), error.reason))
                if k == 1:
                    reason = "image 1 cannot be used, so the sequence is left out"
                    rejects.append(base.Reject(name, reason))
                    return nothing
                continue
            frames, same = fr.detect(image, o.points if k == 1 else None, reach=fr.REACH)
            counts["detections dropped: within half a size of a stronger one"] += same
            if k == 1:
                spots = frames
                parts.append((np.arange(len(spots)), np.ones(len(spots), np.int64), frames))
                continue
            spot, other = landed(fr.project(spots, sequence.homographies[k]), frames)
            noisy = fr.jitter(frames[other], generator_for(o.seed, name, k), o.frame_noise)
            fits = fr.inside(noisy, image.shape)
            counts["detections dropped: frame noise put them over the edge"] += int((~fits).sum())
            parts.append((spot[fits], np.full(fits.sum(), k, np.int64), noisy[fits]))
        spot, number, frame = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        seen = np.bincount(spot, minlength=len(spots))
        counts["spots seen in image 1 only (dropped)"] += int((seen < 2).sum())
        keep = seen[spot] > 1
        spot, number, frame = spot[keep], number[keep], frame[keep]
        order = np.lexsort((number, spot))
        return _Found(np.unique(spot, return_inverse=True)[1][order], number[order], frame[order])

    def _gather(
        self,
        sequences: list[Sequence],
        found: list[tuple[Sequence, _Found]],
        rejects: list[base.Reject],
        counts: Counter[str],
    ) -> base.Candidates:
        keys = [(id(s), k) for s in sequences for k in sorted(s.images)]
        numbers = {key: number for number, key in enumerate(keys)}
        size = [int(classes.spot[-1]) + 1 for _, classes in found]
        label = np.concatenate([c.spot + start for (_, c), start in zip(found, np.cumsum([0, *size]), strict=False)])
        source = [
            b"%b#%d" % (relative_name(sequence.images[k], self.src), spot)
            for sequence, classes in found
            for spot, k in zip(classes.spot.tolist(), classes.image.tolist(), strict=True)
        ]
        image = [numbers[id(sequence), k] for sequence, classes in found for k in classes.image.tolist()]
        frame = np.concatenate([classes.frame for _, classes in found])
        files = [path for s in sequences for files in (s.images, s.homography_files) for path in files.values()]
        result = base.Candidates(
            policy=POLICY,
            raw_label=label,
            source=np.array(source),
            pixel_shape=(fr.SIDE, fr.SIDE),
            columns={"image": np.array(image, np.int64), "frame": frame.astype(np.float32)},
            rejects=rejects,
            files=files,
        )
        offsets = np.append(np.unique(label, return_index=True)[1], len(label))
        group = np.repeat(np.arange(len(found)), size)
        generator = generator_for(self.options.seed, b"pairs")
        # the first patch of every class is image 1's
        add_pairs(result.pairs, counts, self.options.pairs, offsets, group, frame[offsets[:-1]], 0.0, generator)
        result.counts = {name: number for name, number in counts.items() if number}
        return result

    def read(self, numbers: Numbers[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        """Yield (number, patch uint8 (64, 64)) in order; a Reject where an image can no longer be read."""
        if self._found is None:
            self.candidates()
        assert self._found is not None  # candidates() sets it
        starts = np.cumsum([0] + [len(classes.spot) for _, classes in self._found])
        numbers = np.asarray(numbers, np.int64)
        owners = np.searchsorted(starts, numbers, side="right") - 1
        for owner, members in groupby(range(len(numbers)), key=owners.tolist().__getitem__):
            asked = numbers[list(members)]
            yield from self._read(*self._found[owner], asked, asked - starts[owner])

    def _read(
        self, sequence: Sequence, classes: _Found, asked: np.ndarray, within: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        """The candidates `asked` of one sequence, rows `within` of its classes. Each image is read once."""
        result: list[np.ndarray | base.Reject] = [base.Reject(b"", "")] * len(asked)
        images = classes.image[within]
        for k in np.unique(images).tolist():
            which = np.flatnonzero(images == k)
            path = sequence.images[k]
            try:
                patches = fr.cut(read_grey(path), classes.frame[within[which]])
            except ImageError as error:
                name = relative_name(path, self.src)
                for i, spot in zip(which, classes.spot[within[which]].tolist(), strict=True):
                    result[i] = base.Reject(b"%b#%d" % (name, spot), error.reason)
                continue
            for i, patch in zip(which, patches, strict=True):
                result[i] = patch
        yield from zip(asked.tolist(), result, strict=True)


def landed(expected: np.ndarray, detected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which detections (m, 4) land on which expected frames (n, 4; rows of NaN land nowhere): (expected, detected)
    int64 row numbers, each number at most once, ascending in the first. Mutual nearest within the limits above."""
    real = np.flatnonzero(np.isfinite(expected).all(axis=1))
    if not len(real) or not len(detected):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    near = cKDTree(expected[real, :2]).sparse_distance_matrix(
        cKDTree(detected[:, :2]), MAX_PIXELS, output_type="ndarray"
    )
    a, b, distance = real[near["i"]], near["j"], near["v"]
    octaves = np.abs(np.log2(detected[b, 2] / expected[a, 2]))
    turn = np.abs((detected[b, 3] - expected[a, 3] + np.pi) % (2 * np.pi) - np.pi)
    within = np.minimum(MAX_PIXELS, MAX_SIZES * expected[a, 2])
    good = (distance < within) & (octaves < MAX_OCTAVES) & (turn < MAX_TURN)
    a, b, distance = a[good], b[good], distance[good]
    order = np.lexsort((b, a, distance))
    a, b = a[order], b[order]
    nearest_b = dict(zip(a[::-1].tolist(), b[::-1].tolist(), strict=True))  # the first of each is written last
    nearest_a = dict(zip(b[::-1].tolist(), a[::-1].tolist(), strict=True))
    mutual = [(i, j) for i, j in sorted(nearest_b.items()) if nearest_a[j] == i]
    return tuple(np.array(mutual, np.int64).reshape(-1, 2).T)  # type: ignore[return-value]
