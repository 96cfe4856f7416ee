"""`hpatches-sequences`: patches cut from image sequences with homographies by the idea of the HPatches release.

For those who have the release of whole images (`hpatches-sequences-release`: NAME/1.ppm .. 6.ppm, H_1_2 .. H_1_6) and
not that of patches. The layout of the result is that of the reader `hpatches`, so that the three tasks run on it; the
patches are not the release's, and no published figure compares.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Numbers
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from hardmine.errors import InputError
from hardmine.pipeline import frames as fr
from hardmine.pipeline.images import POLICY, ImageError, printable, read_grey, relative_name
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.hpatches import KINDS, SIDE, sequence_number
from hardmine.pipeline.readers.sequence_folders import Sequence, find_sequences
from hardmine.pipeline.readers.warps import generator_for

IMAGES = 6
NOISE = {"e": 1 / 3, "h": 2 / 3, "t": 1.2}  # of each level, in units of `frames.jitter`: 0.15 sizes, 12 degrees, ...


class HPatchesSequencesOptions(base.Options):
    """Options of `ingest hpatches-sequences`."""

    points: int = Field(1300, ge=2, description="the strongest spots of each sequence, at most")
    noise: float = Field(1.0, ge=0, le=2, description="multiplies the errors of the frames; 0 is none")
    seed: int = Field(0, ge=0, description="of the errors")


@dataclass(frozen=True)
class _Cut:
    """A usable sequence: its name, its images 1..6 and the frames of its patches, float64 (16, N, 4), as in KINDS."""

    name: bytes
    images: tuple[Path, ...]
    frames: np.ndarray


@base.readers.register("hpatches-sequences")
class HPatchesSequences:
    """Candidates in order of sequence (byte-sorted), strip (as in `hpatches.KINDS`), patch; a class is a spot.

    Spots are SIFT frames of image 1, strongest first. Strip `ref` is cut there; for e, h and t a seeded error is added
    to the frame, growing from e to t, before it is carried through H_1_k and cut from image k, k = 2..6. Only spots all
    of whose 16 patches lie inside their images are kept. Columns as of `hpatches`, and frame float32 (N, 4). A sequence
    needs all six images and five homographies, else it is a Reject as a whole. Its kind is told by its name, i_ or v_.
    """

    Options: ClassVar[type[base.Options]] = HPatchesSequencesOptions

    def __init__(self, src: Path, options: HPatchesSequencesOptions) -> None:
        self.src, self.options = Path(src), options
        self._cuts: list[_Cut] | None = None

    def candidates(self) -> base.Candidates:
        """Find the spots of every sequence. Raises as `find_sequences` does, and InputError where there is no spot."""
        sequences, rejects, listed = find_sequences(self.src)
        counts: Counter[str] = Counter(listed)
        self._cuts = []
        for sequence in sequences:
            try:
                cut = self._frames(sequence, counts)
            except ImageError as error:
                which = "" if error.path == sequence.folder else f"{printable(Path(os.fsdecode(error.path)).name)}: "
                rejects.append(base.Reject(self._name(sequence), f"{which}{error.reason}; the sequence is left out"))
                continue
            if cut.frames.shape[1]:
                self._cuts.append(cut)
            else:
                rejects.append(base.Reject(cut.name, "no spot whose 16 patches all lie inside their images"))
        if not self._cuts:
            first = f" The first reject: {printable(rejects[0].source)}: {rejects[0].reason}." if rejects else ""
            raise InputError(f"no usable sequence of six images in {printable(self.src)}.{first}")
        counts["sequences"] = len(self._cuts)
        return self._gather(sequences, self._cuts, rejects, {name: n for name, n in counts.items() if n})

    def _frames(self, sequence: Sequence, counts: Counter[str]) -> _Cut:
        """Raises ImageError where an image is missing or cannot be read."""
        o, name = self.options, self._name(sequence)
        absent = [k for k in range(1, IMAGES + 1) if k not in sequence.images]
        if absent:
            named = ", ".join(map(str, absent))
            raise ImageError(sequence.folder, f"images {named} of 1 to {IMAGES}, or their homographies, are missing")
        paths = tuple(sequence.images[k] for k in range(1, IMAGES + 1))
        images = [read_grey(path) for path in paths]
        spots, _ = fr.detect(images[0], reach=fr.REACH)
        frames = np.empty((len(KINDS), len(spots), 4))
        frames[0] = spots
        fits = fr.inside(spots, images[0].shape)
        for kind in range(1, len(KINDS)):
            level, image = KINDS[kind][0], int(KINDS[kind][1])
            generator = generator_for(o.seed, name, KINDS[kind].encode())
            noisy = fr.jitter(spots, generator, NOISE[level] * o.noise)
            frames[kind] = fr.project(noisy, sequence.homographies[image + 1])
            fits &= fr.inside(frames[kind], images[image].shape)
        counts["spots dropped: a patch of theirs lies over an edge"] += int((~fits).sum())
        counts["spots dropped: weaker than the first `points`"] += max(0, int(fits.sum()) - o.points)
        return _Cut(name, paths, frames[:, fits][:, : o.points])

    def _gather(
        self, sequences: list[Sequence], cuts: list[_Cut], rejects: list[base.Reject], counts: dict[str, int]
    ) -> base.Candidates:
        numbers = [sequence_number(cut.name) for cut in cuts]
        size = [cut.frames.shape[1] for cut in cuts]
        kind = np.concatenate([np.repeat(np.arange(len(KINDS)), n) for n in size])
        sequence = np.repeat(np.array(numbers, np.int64), [len(KINDS) * n for n in size])
        columns = {
            "sequence": sequence,
            "index": np.concatenate([np.tile(np.arange(n), len(KINDS)) for n in size]),
            "kind": kind,
            "image": IMAGES * sequence + np.where(kind == 0, 0, (kind - 1) % 5 + 1),
            "frame": np.concatenate([cut.frames.reshape(-1, 4) for cut in cuts]).astype(np.float32),
        }
        spots = [np.array([b"%b:%05d" % (cut.name, i) for i in range(n)]) for cut, n in zip(cuts, size, strict=True)]
        source = [self._source(cut, k, i) for cut in cuts for k in range(len(KINDS)) for i in range(len(cut.frames[0]))]
        return base.Candidates(
            raw_label=np.concatenate([np.tile(names, len(KINDS)) for names in spots]),
            source=np.array(source),
            pixel_shape=(SIDE, SIDE),
            columns=columns,
            rejects=rejects,
            counts=counts,
            files=[path for s in sequences for files in (s.images, s.homography_files) for path in files.values()],
            policy=POLICY,
        )

    def read(self, numbers: Numbers[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        """Yield (number, patch uint8 (65, 65)) in order; a Reject where an image can no longer be read."""
        if self._cuts is None:
            self.candidates()
        assert self._cuts is not None  # candidates() sets it
        strips = np.cumsum([0, *(cut.frames.shape[1] for cut in self._cuts for _ in KINDS)])  # each one's first number
        numbers = np.asarray(numbers, np.int64)
        owner = np.searchsorted(strips, numbers, side="right") - 1
        opened: tuple[Path, np.ndarray | ImageError] | None = None
        for strip, members in groupby(range(len(numbers)), key=owner.tolist().__getitem__):
            asked = numbers[list(members)]
            cut, kind = self._cuts[strip // len(KINDS)], strip % len(KINDS)
            path = cut.images[0 if kind == 0 else (kind - 1) % 5 + 1]
            if opened is None or opened[0] != path:
                opened = path, _grey(path)
            image, within = opened[1], asked - strips[strip]
            if isinstance(image, ImageError):
                for number, index in zip(asked.tolist(), within.tolist(), strict=True):
                    yield number, base.Reject(self._source(cut, kind, index), image.reason)
                continue
            yield from zip(asked.tolist(), fr.cut(image, cut.frames[kind, within], SIDE), strict=True)

    def _name(self, sequence: Sequence) -> bytes:
        folder = sequence.folder
        return relative_name(folder, self.src if folder != self.src else folder.resolve().parent)

    @staticmethod
    def _source(cut: _Cut, kind: int, index: int) -> bytes:
        return b"%b/%b:%d" % (cut.name, KINDS[kind].encode(), index)


def _grey(path: Path) -> np.ndarray | ImageError:
    try:
        return read_grey(path)
    except ImageError as error:
        return error
