"""UBC PhotoTour (Brown, Hua, Winder; liberty, notredame, yosemite and their _harris variants): mosaics of grey patches.

`patchesNNNN.bmp` is a 16 x 16 mosaic of 64 x 64 patches, left to right, then top to bottom; line i of `info.txt` names
the 3D point of patch i, line i of `interest.txt` where it was cut out, and `m50_*_*_0.txt` lists evaluation pairs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.base import Candidates, Pair, Reject, readers

SIDE, GRID = 64, 16
CELLS, WIDTH = GRID * GRID, GRID * SIDE
_MOSAIC = re.compile(rb"patches(\d+)\.bmp", re.IGNORECASE)
_PAIRS = re.compile(r"m50_\d+_\d+_0\.txt", re.IGNORECASE)
_EXPECTED = (
    "the unpacked files of liberty, notredame or yosemite (or their _harris variants): patches0000.bmp, info.txt"
)
_EVALUATION = "m50_100000_100000_0.txt"
_UNLISTED = "no line in info.txt"
_PIXELS = 1078  # bytes before the pixels of a BMP file with a palette of 256 colours
_GREYS = b"".join(bytes((grey, grey, grey, 0)) for grey in range(256))  # the palette in which a pixel is its own grey


@readers.register("phototour")
class PhotoTour:
    """One PhotoTour subset. The patch count is the number of lines in info.txt, and patch i lies in the mosaic whose
    number is i // 256, so that a missing mosaic takes its own 256 patches with it and shifts no other."""

    Options: ClassVar[type[base.Options]] = base.Options  # nothing to choose

    def __init__(self, src: Path, options: base.Options) -> None:
        self.src, self.options = Path(src), options

    def candidates(self) -> Candidates:
        """Columns `image` and `frame` where there is an interest.txt. Raises MissingError without info.txt, InputError
        (naming file and line) for a malformed line or a pair that contradicts info.txt."""
        if not self._mosaics:
            raise InputError(self._nothing_here())
        info = self._path("info.txt")
        if info is None:
            raise MissingError(f"no info.txt in {self.src}: expected {_EXPECTED}")
        label = _table(info, (0,), whole=(0,))[:, 0].astype(np.int64)
        count = len(label)
        interest = self._path("interest.txt")
        columns = {} if interest is None else _positions(interest, count)
        pair_files = [self.src / name for name in self._names if _PAIRS.fullmatch(name)]
        missing = sum(number not in self._mosaics for number in range(-(-count // CELLS)))
        counts = {"mosaics": len(self._mosaics), "mosaics missing": missing, "dot files skipped": self._dot_files}
        if interest is None:
            counts["patches without a position (no interest.txt)"] = count
        counts["evaluation pair files" + ("" if pair_files else f" (evaluation needs {_EVALUATION})")] = len(pair_files)
        files = [info, *([interest] if interest else []), *pair_files, *map(self._mosaic_path, sorted(self._mosaics))]
        return Candidates(
            raw_label=label,
            source=self._sources(count),
            pixel_shape=(SIDE, SIDE),
            columns=columns,
            pairs={path.stem: _pairs(path, label) for path in pair_files},
            rejects=self._unlisted(count),
            counts=counts,
            files=files,
        )

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | Reject]]:
        """As the base says; every mosaic is decoded once."""
        numbers = np.asarray(numbers, np.int64)
        starts = np.flatnonzero(np.diff(numbers // CELLS, prepend=-1))
        for block in np.split(numbers, starts[1:]):
            if not len(block):
                continue
            cells = self._cells(int(block[0]) // CELLS)
            for number in block.tolist():
                if isinstance(cells, str):
                    yield number, Reject(self._source(number), cells)
                else:
                    yield number, cells[number % CELLS]

    @cached_property
    def _names(self) -> list[str]:
        """Byte-sorted, without dot files."""
        return [os.fsdecode(name) for name in self._listing if not name.startswith(b".")]

    @cached_property
    def _listing(self) -> list[bytes]:
        if not self.src.is_dir():
            raise MissingError(f"no folder {self.src}: expected {_EXPECTED}")
        return sorted(os.listdir(os.fsencode(self.src)))

    @property
    def _dot_files(self) -> int:
        return len(self._listing) - len(self._names)

    @cached_property
    def _mosaics(self) -> dict[int, bytes]:
        """Number to file name."""
        found: dict[int, bytes] = {}
        for name in map(os.fsencode, self._names):
            if match := _MOSAIC.fullmatch(name):
                other = found.setdefault(int(match[1]), name)
                if other != name:
                    raise InputError(
                        f"{self.src} has {os.fsdecode(other)} and {os.fsdecode(name)}, both mosaic {int(match[1])}: "
                        "remove one"
                    )
        return found

    def _path(self, name: str) -> Path | None:
        return next((self.src / found for found in self._names if found.lower() == name), None)

    def _mosaic_name(self, mosaic: int) -> bytes:
        return self._mosaics.get(mosaic, b"patches%04d.bmp" % mosaic)

    def _mosaic_path(self, mosaic: int) -> Path:
        return self.src / os.fsdecode(self._mosaic_name(mosaic))

    def _sources(self, count: int) -> np.ndarray:
        """`_source` of the first `count` patches."""
        cells = [b":%d" % cell for cell in range(CELLS)]
        names = [self._mosaic_name(mosaic) for mosaic in range(-(-count // CELLS))]
        return np.array([name + cell for name in names for cell in cells][:count])

    def _source(self, number: int) -> bytes:
        return b"%s:%d" % (self._mosaic_name(number // CELLS), number % CELLS)

    def _cells(self, mosaic: int) -> np.ndarray | str:
        """The patches of a mosaic, uint8 (256, 64, 64), or why there are none."""
        path = self._mosaic_path(mosaic)
        if mosaic not in self._mosaics:
            return f"{path.name} is missing"
        try:
            content = path.read_bytes()
        except OSError as error:
            return f"{path.name} cannot be read: {error.strerror}"
        if problem := _bmp_problem(content):
            return f"{path.name} {problem}"
        image = _plain_pixels(content)
        if image is None:
            with suppress(cv2.error):  # for some damage OpenCV returns None, for some it raises
                image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_GRAYSCALE)
        if image is None:
            return f"{path.name} ({len(content)} bytes) cannot be decoded"
        return np.concatenate(image.reshape(GRID, SIDE, GRID, SIDE).swapaxes(1, 2))  # a third of reshape's time

    def _unlisted(self, count: int) -> list[Reject]:
        """What the mosaics hold beyond the last line of info.txt: whole mosaics, and in the last one the cells that
        are not blank (of one grey value, as the padding is)."""
        last, filled = divmod(count, CELLS)
        rejects = []
        if filled and last in self._mosaics and not isinstance(cells := self._cells(last), str):
            beyond = cells[filled:].reshape(CELLS - filled, -1)
            for cell in np.flatnonzero(beyond.min(1) != beyond.max(1)).tolist():
                rejects.append(Reject(self._source(count + cell), _UNLISTED))
        first = last + (filled > 0)
        rejects += [Reject(self._mosaics[m], _UNLISTED) for m in sorted(self._mosaics) if m >= first]
        return rejects

    def _nothing_here(self) -> str:
        folders = [name for name in self._names if (self.src / name).is_dir()]
        inside = [f for f in folders if any(_MOSAIC.fullmatch(n) for n in os.listdir(os.fsencode(self.src / f)))]
        if inside:
            return f"no patchesNNNN.bmp in {self.src}, but in its folders {', '.join(inside)}: ingest them one by one"
        found = ", ".join(self._names[:5]) + (", ..." if len(self._names) > 5 else "")
        return f"no patchesNNNN.bmp in {self.src} (found: {found or 'nothing'}): expected {_EXPECTED}"


def _bmp_problem(content: bytes) -> str | None:
    """What is wrong with a mosaic's header against its length, if anything."""
    full = _PIXELS + WIDTH * WIDTH
    if len(content) < 54:
        return f"has {len(content)} bytes, expected about {full}"
    if content[:2] != b"BM":
        return f"({len(content)} bytes) is not a BMP file"
    offset, width, height = (int.from_bytes(content[at : at + 4], "little", signed=True) for at in (10, 18, 22))
    bits, packing = int.from_bytes(content[28:30], "little"), int.from_bytes(content[30:34], "little")
    if (width, abs(height)) != (WIDTH, WIDTH):
        return f"is {width} x {abs(height)} pixels, expected {WIDTH} x {WIDTH} ({GRID} x {GRID} patches of {SIDE})"
    expected = offset + -(-width * bits // 32) * 4 * abs(height)
    if packing == 0 and len(content) < expected:
        return f"is cut short: {len(content)} bytes, expected {expected}"
    return None


def _plain_pixels(content: bytes) -> np.ndarray | None:
    """The pixels of a mosaic in which each is one byte, its grey, without packing: a view of them, twenty times as fast
    as decoding. None for any other mosaic; the lengths have been checked."""
    offset, header, bits, packing, colours = (
        int.from_bytes(content[at:end], "little") for at, end in ((10, 14), (14, 18), (28, 30), (30, 34), (46, 50))
    )
    form = (offset, header, bits, packing)
    if form != (_PIXELS, 40, 8, 0) or colours not in (0, 256) or content[54:_PIXELS] != _GREYS:
        return None
    rows = np.frombuffer(content, np.uint8, WIDTH * WIDTH, _PIXELS).reshape(WIDTH, WIDTH)
    from_below = int.from_bytes(content[22:26], "little", signed=True) > 0
    return rows[::-1] if from_below else rows


def _positions(path: Path, count: int) -> dict[str, np.ndarray]:
    """image int64 (N,) and frame float32 (N, 4): x, y, 2**scale (pixels), orientation (radians)."""
    table = _table(path, (0, 1, 2, 3, 4), whole=(0,))
    if len(table) != count:
        raise InputError(f"{path} has {len(table)} lines, info.txt has {count}: they must describe the same patches")
    with np.errstate(over="ignore"):
        frame = np.column_stack([table[:, 1], table[:, 2], np.exp2(table[:, 4]), table[:, 3]]).astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(frame).all(1))
    if len(wrong):
        raise InputError(f"{path}:{wrong[0] + 1}: a position or scale (log2 of pixels) is out of range")
    return {"image": table[:, 0].astype(np.int64), "frame": frame}


def _pairs(path: Path, label: np.ndarray) -> Pair:
    """Columns 0, 3: patches; 1, 4: their 3D points, which match where they are equal."""
    table = _table(path, (0, 1, 3, 4), whole=(0, 1, 2, 3)).astype(np.int64)
    patches, points = table[:, [0, 2]], table[:, [1, 3]]
    outside = (patches < 0) | (patches >= len(label))
    wrong = outside | (label[np.where(outside, 0, patches)] != points)
    if wrong.any():
        line, side = np.argwhere(wrong)[0]
        patch, point = int(patches[line, side]), int(points[line, side])
        if outside[line, side]:
            raise InputError(f"{path}:{line + 1}: patch {patch} does not exist, info.txt has {len(label)} lines")
        raise InputError(f"{path}:{line + 1}: patch {patch} shows 3D point {point}, info.txt says {label[patch]}")
    return Pair(patches[:, 0].copy(), patches[:, 1].copy(), points[:, 0] == points[:, 1])


def _table(path: Path, columns: tuple[int, ...], whole: tuple[int, ...]) -> np.ndarray:
    """The given columns of a text table, float64 (lines, len(columns)), finite; those numbered `whole` among them hold
    integers. Blank lines at the end are left out. Raises InputError naming the line."""
    lines = path.read_bytes().rstrip().splitlines()
    if not lines:
        raise InputError(f"{path} is empty")
    try:
        table = np.loadtxt(lines, usecols=columns, ndmin=2, comments=None, encoding="latin1")
    except ValueError:
        table = np.empty((0, len(columns)))
    if len(table) == len(lines):  # otherwise a line is malformed, or blank and was passed over
        integers = table[:, whole]
        if np.isfinite(table).all() and (integers == np.rint(integers)).all() and (abs(integers) < 2**53).all():
            return table
    number, text = next((n, line) for n, line in enumerate(lines, 1) if not _is_row(line, columns, whole))
    kinds = ", ".join(f"{c + 1} {'an integer' if i in whole else 'a number'}" for i, c in enumerate(columns))
    raise InputError(f"{path}:{number}: expected in column {kinds}; found {text[:80].decode('latin1')!r}")


def _is_row(line: bytes, columns: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    fields = line.decode("latin1").split()
    try:
        values = [float(fields[column]) for column in columns]
    except (ValueError, IndexError):
        return False
    if b"_" in line or not np.isfinite(values).all():
        return False
    return all(values[i].is_integer() and abs(values[i]) < 2**53 for i in whole)
