"""The HPatches benchmark's task files: lists of pairs (verification) and of patches (retrieval), by sequence name.

A list is int32 columns; a sequence is its place in the names it was read with, -1 for one that is not among them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardmine.errors import InputError

PAIR_HEADER, ITEM_HEADER = "s1,t1,idx1,s2,t2,idx2", "s,idx"
IMAGES = 6  # t: 0 is the reference strip, 1..5 the strips of that number
_NAME = "S64"


@dataclass(frozen=True)
class Pairs:
    """Columns int32 (P,): sequence, image (0..5) and patch of both sides."""

    s1: np.ndarray
    t1: np.ndarray
    i1: np.ndarray
    s2: np.ndarray
    t2: np.ndarray
    i2: np.ndarray

    def __len__(self) -> int:
        return len(self.s1)

    def only(self, rows: np.ndarray) -> Pairs:
        """The pairs of these row numbers, or where a mask is true."""
        return Pairs(self.s1[rows], self.t1[rows], self.i1[rows], self.s2[rows], self.t2[rows], self.i2[rows])

    def firsts(self) -> np.ndarray:
        """Rows, ascending, that say what no earlier row says: repeated rows are real (the positives of split illum hold
        some 0.36 M, issue 19 of hpatches/hpatches-benchmark)."""
        key = np.zeros(len(self), np.int64)
        for column, width in ((self.s1, 10), (self.t1, 3), (self.i1, 18), (self.s2, 10), (self.t2, 3), (self.i2, 18)):
            key = (key << width) | column
        return np.sort(np.unique(key, return_index=True)[1])


@dataclass(frozen=True)
class Items:
    """Columns int32 (n,): sequence and patch (of the reference strip)."""

    s: np.ndarray
    i: np.ndarray

    def __len__(self) -> int:
        return len(self.s)

    def only(self, rows: np.ndarray) -> Items:
        """The items of these row numbers, or where a mask is true."""
        return Items(self.s[rows], self.i[rows])


def read_pairs(file: Path, lengths: dict[str, int]) -> tuple[Pairs, dict[str, int]]:
    """A verification list, without the rows that name other sequences than `lengths` (name to patches in a strip), and
    how many of those rows name each. Raises InputError for a file of another form, or a patch that a sequence does not
    have."""
    table = _table(file, PAIR_HEADER, [_NAME, "i4", "i4", _NAME, "i4", "i4"])
    s1, s2 = _numbered(table["f0"], lengths), _numbered(table["f3"], lengths)
    keep = (s1 >= 0) & (s2 >= 0)
    lost = _lost(np.where(s1 < 0, table["f0"], table["f3"])[~keep])
    pairs = Pairs(s1, table["f1"], table["f2"], s2, table["f4"], table["f5"])
    for s, t, i in ((s1, pairs.t1, pairs.i1), (s2, pairs.t2, pairs.i2)):
        _check(file, s, i, lengths)
        wrong = np.flatnonzero((t < 0) | (t >= IMAGES))
        if len(wrong):
            raise InputError(f"{file}, line {wrong[0] + 2}: image {t[wrong[0]]}; a sequence has the images 0 to 5")
    return pairs.only(keep), lost


def read_items(file: Path, lengths: dict[str, int]) -> tuple[Items, dict[str, int]]:
    """A list of queries or distractors; as `read_pairs`."""
    table = _table(file, ITEM_HEADER, [_NAME, "i4"])
    items = Items(_numbered(table["f0"], lengths), table["f1"])
    _check(file, items.s, items.i, lengths)
    return items.only(items.s >= 0), _lost(table["f0"][items.s < 0])


def _table(file: Path, header: str, kinds: list[str]) -> np.ndarray:
    with file.open("rb") as opened:
        found = opened.readline().strip().decode("utf-8", "replace")
        if found != header:
            raise InputError(f"{file}: the first line is {found[:80]!r}; a list of this task begins with {header!r}")
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "loadtxt: input contained no data")  # said below
                table = np.loadtxt(opened, np.dtype(",".join(kinds)), delimiter=",", ndmin=1, comments=None)
        except ValueError as error:
            raise InputError(f"{file} cannot be read below its header: {error}") from error
    if not len(table):
        raise InputError(f"{file} holds no row below its header")
    return table


def _numbered(names: np.ndarray, lengths: dict[str, int]) -> np.ndarray:
    place = {name.encode(): number for number, name in enumerate(lengths)}
    unique, inverse = np.unique(names, return_inverse=True)
    return np.array([place.get(bytes(name), -1) for name in unique], np.int32)[inverse]


def _lost(names: np.ndarray) -> dict[str, int]:
    unique, counts = np.unique(names, return_counts=True)
    return {bytes(name).decode("utf-8", "replace"): int(n) for name, n in zip(unique, counts, strict=True)}


def _check(file: Path, s: np.ndarray, i: np.ndarray, lengths: dict[str, int]) -> None:
    size = np.append(np.array(list(lengths.values()), np.int64), np.iinfo(np.int64).max)[s]  # s = -1: any patch
    wrong = np.flatnonzero((i < 0) | (i >= size))
    if len(wrong):
        row = wrong[0]
        raise InputError(
            f"{file}, line {row + 2}: patch {i[row]} of {[*lengths, 'a sequence'][s[row]]}, which has {size[row]} "
            "patches in this store: the list was made for other patches (leave out `tasks` to have lists generated)"
        )
