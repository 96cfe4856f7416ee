"""Exclusion lists: rows of a patch store that are not to be trained on, each with its reason, as a JSON file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.mining.class_distances import Distances
from hardmine.mining.entries import Entries
from hardmine.store.files import write_atomic
from hardmine.store.patches import PatchStore

FORMAT = 1


@dataclass(frozen=True)
class Exclusions:
    """patches: `PatchStore.fingerprint` of the store that the rows are of. reasons: row to reason, by row."""

    patches: str
    reasons: Mapping[int, str]

    @property
    def rows(self) -> np.ndarray:
        """int64, ascending."""
        return np.array(sorted(self.reasons), np.int64)

    def digest(self) -> str:
        """Hex sha256 of the rows and the store they are of: what a training run depends on."""
        return hashlib.sha256(json.dumps([self.patches, self.rows.tolist()]).encode()).hexdigest()

    def write(self, path: str | Path) -> None:
        """Write the JSON file, in one step. Raises DiskError."""
        rows = [{"row": row, "reason": self.reasons[row]} for row in self.rows.tolist()]
        text = json.dumps({"format": FORMAT, "patches": self.patches, "rows": rows}, indent=1)
        write_atomic(Path(path), (text + "\n").encode())


def read_exclusions(path: str | Path, store: PatchStore) -> Exclusions:
    """The exclusion list at `path`, for `store`. Raises MissingError where there is none, InputError where the file is
    no exclusion list or names a row that is not in the store, StoreError where it is of another store."""
    try:
        tree = json.loads(Path(path).read_bytes())
        if tree["format"] != FORMAT:
            raise InputError(f"{path} has exclusion list format {tree['format']}, this hardmine reads {FORMAT}")
        found = Exclusions(str(tree["patches"]), {int(each["row"]): str(each["reason"]) for each in tree["rows"]})
    except FileNotFoundError:
        raise MissingError(f"no exclusion list at {path}: `hardmine audit` writes one with --out") from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no exclusion list ({error!r}): `hardmine audit` writes one with --out") from error
    if found.patches != store.fingerprint:
        raise StoreError(
            f"the exclusion list {path} was made for the patch store {found.patches[:12]}..., but {store.path} is "
            f"{store.fingerprint[:12]}...: its rows mean other items there. Audit this store."
        )
    wrong = [row for row in found.reasons if not 0 <= row < len(store)]
    if wrong:
        raise InputError(f"{path} names row {wrong[0]}, but {store.path} has the rows 0 to {len(store) - 1}")
    return found


def without(entries: Entries, rows: np.ndarray) -> tuple[Entries, np.ndarray]:
    """Entries without those of `rows`, and the numbers int64 (M',) that the remaining ones had. Raises InputError where
    none remains."""
    kept = np.flatnonzero(~np.isin(entries.row, rows))
    if not len(kept):
        raise InputError(f"the exclusion list names all {len(entries)} entries of the split: none remains")
    sizes = np.bincount(entries.label[kept], minlength=len(entries.offsets) - 1)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Entries(entries.row[kept], entries.view[kept], offsets), kept


class KeptDistances:
    """Distances among the entries that an exclusion list leaves, looked up among all of them."""

    def __init__(self, all_distances: Distances, all_offsets: np.ndarray, offsets: np.ndarray, kept: np.ndarray):
        """all_offsets, offsets: int64 (C + 1,) of all entries and of the remaining. kept: see `without`."""
        self._all, self._offsets = all_distances, offsets
        self._slot = kept - np.repeat(all_offsets[:-1], np.diff(offsets))  # a kept entry's place in its whole class

    def from_anchor(self, classes: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """See `Distances`."""
        start, size = self._offsets[classes], np.diff(self._offsets)[classes]
        found = self._all.from_anchor(classes, self._slot[start + slot])
        column = np.arange(size.max())[None, :]
        there = column < size[:, None]
        whole = self._slot[np.where(there, start[:, None] + column, start[:, None])]
        return np.where(there, np.take_along_axis(found, whole, 1), np.float32(np.nan))
