"""What the readers of image datasets share: the files that describe them, and reading image files by their names.

A list is a text file of fields separated by white space, one item a line; whatever is wrong with one is an InputError
that names the file and the line.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.images import ImageError, printable, read_bytes
from hardmine.pipeline.readers.base import Candidates, Picture, Reject

_INTEGER = re.compile(rb"[+-]?[0-9]{1,18}")


@dataclass
class Listed:
    """Image files as a dataset lists them, in its order: what becomes candidates.

    source: the path of each below the folder, '/' between the parts, bytes. raw_label: its class, all int or all bytes.
    where: what to call each in a message about the list, such as "images.txt:7", or nothing. split: of each, or None.
    lists: the files that this was read from. box: float64 (N, 4) as in `Picture`, NaN where there is none, or None.
    columns, rejects, counts: as in `Candidates`.
    """

    source: list[bytes]
    raw_label: list[int] | list[bytes]
    where: list[str] = field(default_factory=list)
    split: list[bytes] | None = None
    lists: list[Path] = field(default_factory=list)
    box: np.ndarray | None = None
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


class PictureReader:
    """Base of the readers whose items are whole image files, or boxes of them. A child gives `listed`, from which come
    the candidates; nothing is opened before `read`."""

    def __init__(self, src: Path, options: Any) -> None:
        self.src, self.options = Path(src), options
        self._source: np.ndarray | None = None
        self._box: np.ndarray | None = None

    def listed(self) -> Listed:
        """The items, as the dataset lists them. Raises InputError / MissingError where the folder is not its layout."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it lists")

    @property
    def folder(self) -> Path:
        """The folder that sources are relative to."""
        return self.src

    def candidates(self) -> Candidates:
        """One candidate per listed file. A file that is listed again is a Reject; one that is not there is found out by
        `read`. Raises as `listed` does, and InputError where nothing is listed."""
        listed = self.listed()
        keep, again = _once(listed)
        if not len(keep):
            first = "".join(f" ({printable(each.source)}: {each.reason})" for each in listed.rejects[:1])
            raise InputError(f"{printable(self.src)} lists no usable image{first}")
        source = np.array(listed.source)[keep]
        raw_label = np.array(listed.raw_label)[keep]
        self._source = source
        self._box = None if listed.box is None else listed.box[keep]
        paths = [self.folder / os.fsdecode(name) for name in source.tolist()]
        return Candidates(
            raw_label=raw_label if raw_label.dtype.kind == "S" else raw_label.astype(np.int64),
            source=source,
            pixel_shape=None,
            columns={name: values[keep] for name, values in listed.columns.items()},
            rejects=listed.rejects + again,
            counts=listed.counts,
            files=listed.lists + [path for path in paths if os.path.exists(path)],
            split=None if listed.split is None else np.array(listed.split)[keep],
        )

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, Picture | Reject]]:
        """Yield (number, the file as a Picture) in order; a Reject with the reason where it cannot be read."""
        if self._source is None:
            self.candidates()
        assert self._source is not None  # candidates() sets it
        for number in np.asarray(numbers, np.int64).tolist():
            name = bytes(self._source[number])
            try:
                content = read_bytes(self.folder / os.fsdecode(name))
            except ImageError as error:
                yield number, Reject(name, error.reason)
                continue
            yield number, Picture(content, name, self._box_of(number))

    def _box_of(self, number: int) -> tuple[float, float, float, float] | None:
        if self._box is None or np.isnan(self._box[number, 0]):
            return None
        x1, y1, x2, y2 = self._box[number].tolist()
        return x1, y1, x2, y2


def _once(listed: Listed) -> tuple[np.ndarray, list[Reject]]:
    """int64 positions of the first time each source is listed, and a Reject for every further time."""
    first: dict[bytes, int] = {}
    keep, rejects = [], []
    for position, name in enumerate(listed.source):
        earlier = first.setdefault(name, position)
        if earlier == position:
            keep.append(position)
        else:
            again = f" in {listed.where[position]} (first: {listed.where[earlier]})" if listed.where else ""
            label, other = listed.raw_label[position], listed.raw_label[earlier]
            conflict = "" if label == other else f", as class {_word(label)} after class {_word(other)}"
            rejects.append(Reject(name, f"listed again{again}{conflict}; the first is kept"))
    return np.array(keep, np.int64), rejects


def _word(label: int | bytes) -> str:
    return printable(label) if isinstance(label, bytes) else str(label)


def find_file(src: Path, names: Sequence[str], origin: str) -> Path:
    """The first of `names` (paths below `src`) that is a file. Raises MissingError naming the expected file, where it
    comes from (`origin`) and what is there instead."""
    for name in names:
        if (src / name).is_file():
            return src / name
    expected = " or ".join(names)
    if not src.is_dir():
        raise MissingError(f"no folder {printable(src)}: expected one with {expected}; {origin}")
    below = sorted(path for path in src.iterdir() if path.is_dir() and not path.name.startswith("."))
    inside = [path.name for path in below if any((path / name).is_file() for name in names)]
    if inside:
        raise MissingError(
            f"no {expected} in {printable(src)}, but in its folder {printable(inside[0])}: give "
            f"{printable(src / inside[0])}"
        )
    found = sorted(path.name for path in src.iterdir() if not path.name.startswith("."))
    there = ", ".join(printable(name) for name in found[:5]) + (", ..." if len(found) > 5 else "")
    raise MissingError(f"no {expected} in {printable(src)} (found: {there or 'nothing'}): {origin}")


def _whole(word: bytes) -> int:
    if not _INTEGER.fullmatch(word):
        raise ValueError(word)
    return int(word)


def _real(word: bytes) -> float:
    value = float(word)
    if not math.isfinite(value) or b"_" in word:
        raise ValueError(word)
    return value


class Form(NamedTuple):
    """What a field of a list holds: in words, and a function from its bytes to the value that raises ValueError."""

    words: str
    parse: Callable[[bytes], Any]


WORD, WHOLE, NUMBER = Form("a word", bytes), Form("a whole number", _whole), Form("a number", _real)


def expect_header(path: Path, line: int, header: str) -> None:
    """Raises InputError unless that line (from 1) of a list holds the words of `header`."""
    lines = read_text(path).splitlines()
    found = lines[line - 1].decode("utf-8", "backslashreplace") if line <= len(lines) else ""
    if found.split() != header.split():
        raise InputError(f"{printable(path)}:{line}: expected the header {header!r}; found {found[:80]!r}")


def read_list(path: Path, fields: Mapping[str, Form], lines: slice = slice(None)) -> dict[str, list[Any]]:
    """The columns of a list, by field name, and their line numbers (from 1) as "line".

    fields: the name and the form of each, in order. lines: which of the file's lines hold them. Blank lines are passed
    over. Raises InputError naming file and line."""
    columns: dict[str, list[Any]] = {"line": []} | {name: [] for name in fields}
    for number, line in list(enumerate(read_text(path).splitlines(), 1))[lines]:
        words = line.split()
        if not words:
            continue
        try:
            values = [form.parse(word) for form, word in zip(fields.values(), words, strict=True)]
        except ValueError:
            expected = ", ".join(f"{name} ({form.words})" for name, form in fields.items())
            found = line[:80].decode("utf-8", "backslashreplace")
            raise InputError(f"{printable(path)}:{number}: expected {expected}; found {found!r}") from None
        columns["line"].append(number)
        for name, value in zip(fields, values):
            columns[name].append(value)
    return columns


def read_text(path: Path) -> bytes:
    """The bytes of a text file, without a byte order mark. Raises InputError where it cannot be read, or is UTF-16."""
    try:
        content = read_bytes(path)
    except ImageError as error:
        raise InputError(str(error)) from error
    if b"\0" in content:
        raise InputError(f"{printable(path)} holds zero bytes, as UTF-16 text does: save it as UTF-8")
    return content.removeprefix(b"\xef\xbb\xbf")
