"""Descriptors in the HPatches benchmark's own layout: SEQUENCE/STRIP.csv, a line of D numbers for each patch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.readers.hpatches import KINDS
from hardmine.protocols.base import Describe
from hardmine.protocols.hpatches.strips import strips_of
from hardmine.store.files import disk_errors, replacing
from hardmine.store.patches import PatchStore

DELIMITER = ","


def write_csv(
    folder: Path,
    store: PatchStore,
    describe: Describe,
    delimiter: str = DELIMITER,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the descriptors of the whole sequences of a store to `folder`; the number of files written.

    Numbers are written with nine significant digits, which give the same float32 again. A file appears when it is
    whole. progress: called with (files done, files in all). Raises InputError where the store is not HPatches',
    DiskError.
    """
    rows = {s: table for split in store.split_names for s, table in strips_of(store, split).rows.items()}
    done, total = 0, len(rows) * len(KINDS)
    for name, table in sorted(rows.items()):
        with disk_errors(folder / name):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for kind, strip in zip(KINDS, table, strict=True):
            with replacing(folder / name / f"{kind}.csv") as temporary:
                np.savetxt(temporary, describe(strip), fmt="%.9g", delimiter=delimiter)
            done += 1
            if progress is not None:
                progress(done, total)
    return done


def csv_descriptors(folder: Path, store: PatchStore, delimiter: str = DELIMITER) -> Describe:
    """Descriptors of a store's rows, float32 (n, D), read from a folder in that layout when they are asked for.

    A strip is read whole and the last one kept. Raises MissingError without the folder; the returned function raises
    MissingError for a sequence or strip that is not there, InputError for a file that is not a table of finite numbers
    or has another number of lines than the strip has patches, naming file and line.
    """
    if not folder.is_dir():
        raise MissingError(f"no folder {folder}: expected descriptors as FOLDER/v_wall/ref.csv, e1.csv .. t5.csv")
    where = np.full((len(store), 2), -1, np.int64)  # the strip of each row, and its place there
    strips: list[tuple[str, str, int]] = []
    for split in store.split_names:
        for name, table in strips_of(store, split).rows.items():
            for kind, rows in zip(KINDS, table, strict=True):
                where[rows, 0], where[rows, 1] = len(strips), np.arange(len(rows))
                strips.append((name, kind, len(rows)))
    last: dict[int, np.ndarray] = {}

    def describe(rows: np.ndarray) -> np.ndarray:
        number, place = where[rows].T
        if (number < 0).any():
            raise InputError(f"row {rows[np.argmax(number < 0)]} of {store.path} belongs to no whole sequence")
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for strip in np.unique(number).tolist():
            if strip not in last:
                name, kind, patches = strips[strip]
                last.clear()
                last[strip] = _read(folder / name / f"{kind}.csv", patches, delimiter)
            asked = np.flatnonzero(number == strip)
            parts.append((asked, last[strip][place[asked]]))
        widths = {values.shape[1] for _, values in parts}
        if len(widths) > 1:
            raise InputError(f"{folder}: descriptors of {' and of '.join(map(str, sorted(widths)))} numbers")
        out = np.empty((len(rows), widths.pop() if widths else 0), np.float32)
        for asked, values in parts:
            out[asked] = values
        return out

    return describe


def _read(file: Path, patches: int, delimiter: str) -> np.ndarray:
    """The descriptors of one strip, float32 (patches, D)."""
    try:
        values = np.loadtxt(file, np.float32, delimiter=delimiter, ndmin=2, comments=None, encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingError(f"{file} is missing: every strip of a sequence that is evaluated needs its file") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise InputError(f"{file}, {_first_unfit(file, delimiter)}: {error}") from error
    if len(values) != patches:
        raise InputError(f"{file}: {len(values)} lines for the {patches} patches of the strip; it is of other patches")
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise InputError(f"{file}, line {bad[0] + 1}: not finite; {len(bad)} of {len(values)} descriptors are not")
    return values


def _first_unfit(file: Path, delimiter: str) -> str:
    """Which line of a file is the first that is not as many numbers as the one before."""
    width = None
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            words = line.split(delimiter)
            try:
                for word in words:
                    float(word)
            except ValueError:
                return f"line {number}: not numbers with {delimiter!r} between them"
            if width not in (None, len(words)):
                return f"line {number}: {len(words)} numbers, the lines before have {width}"
            width = len(words)
    return "some line: not numbers"
