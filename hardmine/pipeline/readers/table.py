"""`table`: image files listed in a table (CSV, or any other delimiter), with their class and whatever else it says."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, field_validator

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.images import printable
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.columns import store_columns
from hardmine.pipeline.readers.listing import Listed, PictureReader, read_text

_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "space": " "}
_WORD = re.compile(r"[^ \t\n]+")

ColumnName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]
FileNames = Annotated[tuple[str, ...], BeforeValidator(lambda names: names.split(",") if type(names) is str else names)]


class TableOptions(base.Options):
    """Options of `ingest table`."""

    files: FileNames = Field(
        (), description="tables in SRC, where SRC is a folder; several: each is a split of its name"
    )
    header: bool = Field(True, description="whether the first row names the columns; otherwise they are 1, 2, ...")
    delimiter: str = Field("comma", description="comma, semicolon, tab, space (any run of white space), or a character")
    path_column: ColumnName | None = Field(None, description="default: path, or 1 without a header")
    label_column: ColumnName | None = Field(None, description="default: label, or 2 without a header")
    split_column: ColumnName | None = Field(None, description="default: split, if there is such a column")
    root: str = Field("", description="folder that paths are relative to; default: the table's")

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, delimiter: str) -> str:
        if delimiter not in _DELIMITERS and (len(delimiter) != 1 or delimiter in '"\r\n' or ord(delimiter) > 127):
            raise ValueError(f"one of {', '.join(_DELIMITERS)}, or one ASCII character that is no quote or line end")
        return delimiter


@dataclass(frozen=True)
class _Table:
    """One file: the names of its columns, and line number and values of each row."""

    path: Path
    names: list[str]
    rows: list[tuple[int, list[str]]]

    def position(self, name: str, option: str) -> int:
        """Of a column. Raises InputError naming the columns there are."""
        if name in self.names:
            return self.names.index(name)
        there = ", ".join(map(repr, self.names[:20]))
        raise InputError(
            f"{printable(self.path)} has no column {name!r} (its columns: {there}): give {option}, or header=false if "
            "its first row is an item"
        )


@base.readers.register("table")
class Table(PictureReader):
    """Candidates in order of the rows; raw_label bytes, as written ("007" and "7" are two classes); source the path
    below the table's folder.

    Further columns become columns of the store: int64, float32 or bytes, under names of letters, digits, '_', '.' and
    '-' (`columns.store_columns`). A value with the delimiter in it is quoted ("x_0,0.jpg"), a quote in it doubled;
    spaces after a delimiter are not part of a value. With delimiter=space, nothing is quoted and no value has a space.
    Several tables are one, each a split named after its file, unless they have a split column."""

    Options: ClassVar[type[base.Options]] = TableOptions

    @property
    def folder(self) -> Path:
        return self.src if self.options.files else self.src.parent

    def listed(self) -> Listed:
        """Raises MissingError without the table, InputError for what is wrong with it (naming the line) or a column
        that it does not have."""
        tables = [self._read_table(path) for path in self._paths()]
        first = tables[0]
        for table in tables[1:]:
            if table.names != first.names:
                raise InputError(f"{printable(table.path)} has other columns than {printable(first.path)}")
        o = self.options
        path_at = first.position(o.path_column or ("path" if o.header else "1"), "path_column")
        label_at = first.position(o.label_column or ("label" if o.header else "2"), "label_column")
        split_name = o.split_column or ("split" if "split" in first.names else None)
        split_at = None if split_name is None else first.position(split_name, "split_column")
        by_file = split_at is None and len(tables) > 1
        source, label, split, where, rows, rejects = [], [], [], [], [], []
        for table in tables:
            for line, row in table.rows:
                here = f"{printable(table.path.name)}:{line}"
                if not row[path_at]:
                    rejects.append(base.Reject(here.encode(), "no path in this row"))
                    continue
                name = self._below(_raw(row[path_at]))
                if not row[label_at]:
                    rejects.append(base.Reject(name, f"no label in {here}"))
                    continue
                source.append(name)
                label.append(_raw(row[label_at]))
                split.append(_raw(table.path.stem if split_at is None else row[split_at]))
                where.append(here)
                rows.append(row)
        others = [at for at in range(len(first.names)) if at not in (path_at, label_at, split_at)]
        titles = [first.names[at] if o.header else f"column_{first.names[at]}" for at in others]
        columns, counts = store_columns(titles, [[row[at] for row in rows] for at in others])
        return Listed(
            source=source,
            raw_label=label,
            where=where,
            split=split if by_file or split_at is not None else None,
            lists=[table.path for table in tables],
            columns=columns,
            rejects=rejects,
            counts=counts,
        )

    def _paths(self) -> list[Path]:
        """The files of the table. Raises MissingError naming one that is not there."""
        files = [self.src / name for name in self.options.files] or [self.src]
        for path in files:
            if path.is_dir():
                raise InputError(f"{printable(path)} is a folder: give the table itself, or files=NAME.csv,...")
            if not path.is_file():
                raise MissingError(f"no table {printable(path)}")
        return files

    def _below(self, listed: bytes) -> bytes:
        """A listed path, below the table's folder."""
        root = os.fsencode(self.options.root)
        if not root and not os.path.isabs(listed):
            return os.path.normpath(listed)
        folder = os.fsencode(self.folder)
        return os.path.relpath(os.path.join(folder, root, listed), folder)

    def _read_table(self, path: Path) -> _Table:
        """Raises InputError naming the line that is malformed or has more or fewer values than the first."""
        rows = list(self._split(read_text(path).decode("utf-8", "surrogateescape"), path))
        if not rows:
            raise InputError(f"{printable(path)} has no row")
        width = len(rows[0][1])
        for line, row in rows:
            if len(row) != width:
                raise InputError(
                    f"{printable(path)}:{line}: {len(row)} values, where the first row has {width}; a value that holds "
                    "the delimiter must be quoted"
                )
        names = rows[0][1] if self.options.header else [str(number) for number in range(1, width + 1)]
        twice = [name for name in names if name and names.count(name) > 1]
        if twice:
            raise InputError(f"{printable(path)} has two columns {twice[0]!r}")
        return _Table(path, names, rows[1:] if self.options.header else rows)

    def _split(self, text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
        """Line number and values of each row that is not blank."""
        if self.options.delimiter == "space":
            rows = enumerate((_WORD.findall(line) for line in io.StringIO(text, newline=None)), 1)
            yield from ((line, row) for line, row in rows if row)
            return
        delimiter = _DELIMITERS.get(self.options.delimiter, self.options.delimiter)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise InputError(f"{printable(path)}:{reader.line_num}: {error}") from error


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
