"""HPatches, the patch release: folders i_NAME (illumination) and v_NAME (viewpoint) of 16 grey strips each.

A strip is one PNG file, 65 pixels wide and 65 N high: patch k is its rows 65 k .. 65 k + 64. `ref.png` is cut from the
sequence's first image; e1..e5 (easy), h1..h5 (hard) and t1..t5 (tough) from its images 2 to 6, with growing errors of
the position. Patch k of all 16 strips shows the same spot.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import DTypeLike
from pydantic import Field

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.images import POLICY, ImageError, printable, read_grey
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.hpatches_names import SEQUENCES, TEST

SIDE = 65
KINDS = ("ref", *(f"{noise}{image}" for noise in "eht" for image in range(1, 6)))  # the values of the column `kind`
_IMAGES = 6  # of a sequence: strips e3, h3 and t3 are cut from one image
_NAME = re.compile(rb"[iv]_.+")
_LISTED = 20  # names of missing sequences to print
_EXPECTED = f"the unpacked hpatches-release: folders i_* and v_*, each with {KINDS[0]}.png, {KINDS[1]}.png .. t5.png"


class HPatchesOptions(base.Options):
    """Options of `ingest hpatches`."""

    official: Literal["a", "b", "c"] | None = Field(
        None, description="the release's split of the sequences into train (76) and test (40); none: no split"
    )


@dataclass(frozen=True)
class _Sequence:
    """A usable sequence: its folder's name, its number, the files of its 16 strips, and the patches in each."""

    name: bytes
    number: int
    files: tuple[bytes, ...]
    patches: int


@base.readers.register("hpatches")
class HPatches:
    """Candidates in order of sequence (byte-sorted), strip (as in KINDS), patch; a class is a spot, 16 patches.

    Columns, all int64: `sequence`, the sequence's number (`sequence_number`); `index`, the patch's number in its strip;
    `kind`, the strip (0 ref, 1..5 e, 6..10 h, 11..15 t); `image`, 6 * sequence + the image of the sequence (0..5) that
    it was cut from. raw_label is b"v_wall:00012", source
    b"v_wall/ref.png:12". No patch is left out, flat ones neither: all 16 strips stay aligned. A sequence whose strips
    are not all there, whole and of one height is a Reject as a whole.
    """

    Options: ClassVar[type[base.Options]] = HPatchesOptions

    def __init__(self, src: Path, options: HPatchesOptions) -> None:
        self.src, self.options = Path(src), options
        self._sequences: list[_Sequence] | None = None

    def candidates(self) -> base.Candidates:
        """Look at every strip's header. Raises MissingError without the folder, InputError where it is another one."""
        names, counts = self._folders()
        rejects, sequences = [], []
        for name in names:
            try:
                sequences.append(self._look_at(name))
            except ImageError as error:
                rejects.append(base.Reject(name, f"{error.reason}; the sequence is left out"))
        self._sequences = sequences
        absent = sorted(set(SEQUENCES) - {os.fsdecode(name) for name in names})
        found = {
            f"sequences ({len(SEQUENCES)} expected)": len(sequences),
            "sequences left out": len(rejects),
            f"sequences missing{_listed(absent)}": len(absent),
            "sequences of no official name": len(names) + len(absent) - len(SEQUENCES),
        }
        size = [s.patches * len(KINDS) for s in sequences]
        index = [np.tile(np.arange(s.patches), len(KINDS)) for s in sequences]
        kind = [np.repeat(np.arange(len(KINDS)), s.patches) for s in sequences]
        label = [np.tile(np.array([b"%b:%05d" % (s.name, i) for i in range(s.patches)]), len(KINDS)) for s in sequences]
        source = [
            np.array([self._source(s, k, i) for k in range(len(KINDS)) for i in range(s.patches)]) for s in sequences
        ]
        sequence = np.repeat(np.array([s.number for s in sequences], np.int64), size)
        columns = {"sequence": sequence, "index": _joined(index, np.int64), "kind": _joined(kind, np.int64)}
        # kind 0 is image 0; of each five kinds after it, one is image 1, the next image 2, ...
        columns["image"] = _IMAGES * sequence + np.where(columns["kind"] == 0, 0, (columns["kind"] - 1) % 5 + 1)
        return base.Candidates(
            raw_label=_joined(label, "S1"),
            source=_joined(source, "S1"),
            pixel_shape=(SIDE, SIDE),
            columns=columns,
            rejects=rejects,
            counts=found | counts,
            files=[self._path(s, k) for s in sequences for k in range(len(KINDS))],
            policy=POLICY,
            split=self._split(sequences, size),
        )

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        """Yield (number, patch uint8 (65, 65)) in order, each strip decoded once; a Reject for every patch of a strip
        that cannot be decoded."""
        if self._sequences is None:
            self.candidates()
        assert self._sequences is not None  # candidates() sets it
        numbers = np.asarray(numbers, np.int64)
        strips = np.cumsum([0, *(s.patches for s in self._sequences for _ in KINDS)])  # the first number of each
        owner = np.searchsorted(strips, numbers, side="right") - 1
        for block in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(owner)) + 1):
            if not len(block):
                continue
            strip = int(owner[block[0]])
            yield from self._read(*divmod(strip, len(KINDS)), numbers[block], numbers[block] - strips[strip])

    def _read(
        self, which: int, kind: int, numbers: np.ndarray, within: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        """The candidates `numbers`, patches `within` of one strip."""
        assert self._sequences is not None  # read() made sure
        sequence = self._sequences[which]
        try:
            strip = read_grey(self._path(sequence, kind))
            if strip.shape != (SIDE * sequence.patches, SIDE):
                raise ImageError(self._path(sequence, kind), "changed while it was being ingested; ingest again")
        except ImageError as error:
            for number, index in zip(numbers.tolist(), within.tolist(), strict=True):
                yield number, base.Reject(self._source(sequence, kind, index), error.reason)
            return
        yield from zip(numbers.tolist(), strip.reshape(-1, SIDE, SIDE)[within], strict=True)

    def _folders(self) -> tuple[list[bytes], dict[str, int]]:
        """The names of the sequence folders, byte-sorted, and counts of what was passed by."""
        if not self.src.is_dir():
            raise MissingError(f"no folder {printable(self.src)}: expected {_EXPECTED}")
        there = sorted(os.listdir(os.fsencode(self.src)))
        visible = [name for name in there if not name.startswith(b".")]
        names = [name for name in visible if _NAME.fullmatch(name) and os.path.isdir(self._folder(name))]
        if not names:
            found = ", ".join(map(printable, visible[:5])) + (", ..." if len(visible) > 5 else "")
            advice = "" if b"ref.png" not in visible else " This is one sequence: give the folder that it is in."
            raise InputError(
                f"no sequence in {printable(self.src)} (found: {found or 'nothing'}): expected {_EXPECTED}.{advice}"
            )
        dots, others = len(there) - len(visible), len(visible) - len(names)
        counts = {"dot files skipped": dots, "files and folders that are no sequence": others}
        return names, {what: count for what, count in counts.items() if count}

    def _look_at(self, name: bytes) -> _Sequence:
        """One sequence by its strips' headers. Raises ImageError where it is not whole."""
        folder = self._folder(name)
        try:
            there = {file.lower(): file for file in sorted(os.listdir(os.fsencode(folder)))}
        except OSError as error:
            raise ImageError(folder, f"the folder cannot be listed ({error.strerror or error})") from error
        absent = [kind for kind in KINDS if f"{kind}.png".encode() not in there]
        if absent:
            raise ImageError(folder, f"{len(absent)} of {len(KINDS)} strips are missing ({', '.join(absent)})")
        files = tuple(there[f"{kind}.png".encode()] for kind in KINDS)
        heights = [_height(folder / os.fsdecode(file)) for file in files]
        for file, height in zip(files, heights, strict=True):
            if height != heights[0]:
                raise ImageError(
                    folder,
                    f"{printable(file)}: height {height} ({height // SIDE} patches), but {printable(files[0])} has "
                    f"{heights[0]} ({heights[0] // SIDE} patches)",
                )
        return _Sequence(name, sequence_number(name), files, heights[0] // SIDE)

    def _split(self, sequences: list[_Sequence], size: list[int]) -> np.ndarray | None:
        """Bytes (N,): b"train", b"test", or b"" for a sequence that the release does not have."""
        if self.options.official is None:
            return None
        test = TEST[self.options.official]
        side = [
            b"test" if name in test else b"train" if name in SEQUENCES else b""
            for name in (os.fsdecode(s.name) for s in sequences)
        ]
        return np.repeat(np.array(side, "S5"), size)

    def _folder(self, name: bytes) -> Path:
        return self.src / os.fsdecode(name)

    def _path(self, sequence: _Sequence, kind: int) -> Path:
        return self._folder(sequence.name) / os.fsdecode(sequence.files[kind])

    @staticmethod
    def _source(sequence: _Sequence, kind: int, index: int) -> bytes:
        return b"%b/%b:%d" % (sequence.name, sequence.files[kind], index)


def sequence_number(name: bytes) -> int:
    """The number of a sequence, the same in every store: its place in SEQUENCES, which is byte-sorted; for one that the
    release does not have, 116 + 48 bits of its name's SHA-256."""
    if (known := os.fsdecode(name)) in SEQUENCES:
        return SEQUENCES.index(known)
    return len(SEQUENCES) + int.from_bytes(hashlib.sha256(name).digest()[:6], "big")


def _height(path: Path) -> int:
    """The height of a strip in pixels, a multiple of 65. Raises ImageError where it is no whole PNG of that form."""
    try:
        with open(path, "rb") as file:
            head = file.read(24)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 64))
            tail = file.read()
    except OSError as error:
        raise ImageError(path, f"{printable(path.name)} cannot be read ({error.strerror or error})") from error
    name = printable(path.name)
    if head[:8] != b"\x89PNG\r\n\x1a\n" or head[12:16] != b"IHDR":
        raise ImageError(path, f"{name} is not a PNG file ({size:,} bytes)")
    if b"IEND" not in tail:
        raise ImageError(path, f"{name} is truncated ({size:,} bytes)")
    width, height = (int.from_bytes(head[at : at + 4], "big") for at in (16, 20))
    if width != SIDE:
        raise ImageError(path, f"{name}: width {width}, a strip is {SIDE} pixels wide")
    if height % SIDE:
        raise ImageError(path, f"{name}: height {height} is not a multiple of {SIDE}")
    return height


def _joined(parts: list[np.ndarray], dtype: DTypeLike) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts])


def _listed(names: list[str]) -> str:
    if not names:
        return ""
    return ": " + ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
