"""PatchStore: the patches of a data set on disk, found by row, with their classes, splits and evaluation pairs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hardmine.errors import InputError, MissingError, StoreError, UnknownNameError
from hardmine.store.files import sha256_file
from hardmine.store.hdf5 import map_patches
from hardmine.store.manifest import Manifest, read_manifest, rejects_from_csv

WHOLE = "all"  # the split of a store that has none


@dataclass(frozen=True)
class PairList:
    """Evaluation pairs. first, second: int64 (P,) rows; match: bool (P,). lost: pairs that named a rejected patch."""

    name: str
    first: np.ndarray
    second: np.ndarray
    match: np.ndarray
    lost: int


class PatchStore:
    """A committed patch store, read-only. Rows are 0..len-1.

    Nothing is opened before it is asked for, each process opens its own memory maps, and a pickled store carries only
    its path and manifest: it may be used, then handed to forked or spawned workers. Its arrays are shared and therefore
    not writable; copy one to change it. Use `PatchStore.open`.
    """

    def __init__(self, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        self._columns: dict[str, np.ndarray] = {}

    @classmethod
    def open(cls, path: str | Path) -> PatchStore:
        """Open the store at `path`, checking that every file is there at its recorded size.

        Raises MissingError if there is no store, StoreError if a file is missing or of another size."""
        path = Path(path)
        manifest = read_manifest(path)
        for entry in manifest.files():
            try:
                size = (path / entry.file).stat().st_size
            except FileNotFoundError:
                raise StoreError(
                    f"{path / entry.file} is missing: delete {path} and ingest the data set again"
                ) from None
            if size != entry.bytes:
                raise StoreError(
                    f"{path / entry.file} has {size} bytes, the manifest says {entry.bytes}: it is damaged, delete "
                    f"{path} and ingest the data set again"
                )
        return cls(path, manifest)

    def __reduce__(self) -> tuple[type[PatchStore], tuple[Path, Manifest]]:
        return PatchStore, (self.path, self.manifest)

    def __len__(self) -> int:
        return self.manifest.rows

    def __repr__(self) -> str:
        return f"PatchStore({str(self.path)!r}: {len(self)} patches, {self.num_classes} classes, {self.split_names})"

    # Columns

    @property
    def pixel_shape(self) -> tuple[int, ...]:
        """(H, W) or (H, W, C)."""
        return self.manifest.pixel_shape

    @property
    def num_classes(self) -> int:
        """C: labels are 0..C-1. A class may be empty, if none of its patches could be read."""
        return self.manifest.classes

    @property
    def label(self) -> np.ndarray:
        """int64 (N,) in 0..C-1."""
        return self._column("label")

    @property
    def raw_label(self) -> np.ndarray:
        """(N,) int64 or bytes ('S'): what the data set calls the class."""
        return self._column("raw_label")

    @property
    def source(self) -> np.ndarray:
        """(N,) bytes ('S'): where each patch came from."""
        return self._column("source")

    @property
    def used(self) -> np.ndarray:
        """bool (N,): False where a class-size limit left the patch out."""
        return self._column("used")

    def column(self, name: str) -> np.ndarray | None:
        """A further column, (N, ...), or None if the data set has none of that name. 'image' int64: number of the
        photograph; 'frame' float32 (N, 4): x, y, size in pixels of that photograph, angle in radians."""
        return self._column(name) if name in self.manifest.columns else None

    @cached_property
    def class_order(self) -> np.ndarray:
        """int64 (N,): rows by class, ascending; class c has class_order[class_offsets[c] : class_offsets[c + 1]]."""
        return _frozen(np.argsort(self.label, kind="stable").astype(np.int64))

    @cached_property
    def class_offsets(self) -> np.ndarray:
        """int64 (C+1,)."""
        sizes = np.bincount(self.label, minlength=self.num_classes)
        return _frozen(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    # Splits

    @property
    def split_names(self) -> list[str]:
        """The splits; ["all"] if the store has none."""
        return self.manifest.splits or [WHOLE]

    def resolve_split(self, split: str | None) -> str:
        """The name of the split meant by `split`: itself, or for None the only one.

        Raises UnknownNameError for a name that is none, InputError for None where there are several."""
        if split is None and len(self.split_names) > 1:
            raise InputError(f"{self.path} has the splits {', '.join(self.split_names)}: name the one to use")
        if split is None:
            return self.split_names[0]
        if split not in self.split_names:
            raise UnknownNameError(f"split of {self.path}", split, self.split_names)
        return split

    def rows(self, split: str | None = None) -> np.ndarray:
        """int64, ascending: the used rows of a split. Raises as `resolve_split` does."""
        name = self.resolve_split(split)
        if not self.manifest.splits:
            return np.flatnonzero(self.used)
        return np.flatnonzero(self.used & (self._column("split") == self.manifest.splits.index(name)))

    # Pixels

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """uint8 (n, *pixel_shape): the patches of `rows` (any integers, in any order, repeats allowed), a fresh array.

        Raises InputError for a row outside 0..N-1; -1 is never the last row."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
            raise InputError(f"rows must be a one-dimensional integer array, not {rows.dtype} {rows.shape}")
        if not rows.size:
            return np.empty((0, *self.pixel_shape), np.uint8)
        if rows.min() < 0 or rows.max() >= len(self):
            wrong = rows[(rows < 0) | (rows >= len(self))][0]
            raise InputError(f"row {wrong} is not in {self.path}, which has the rows 0 to {len(self) - 1}")
        rows = rows.astype(np.int64)
        shard = np.searchsorted(self._shard_offsets, rows, side="right") - 1
        size = math.prod(self.pixel_shape)
        start = (rows - self._shard_offsets[shard]) * size
        # One copy per patch, from the page cache to its place: twice as fast as fancy indexing shard by shard.
        maps = self._maps
        pixels = bytearray().join([maps[s][b : b + size] for s, b in zip(shard.tolist(), start.tolist())])
        return np.frombuffer(pixels, np.uint8).reshape(len(rows), *self.pixel_shape)

    def stream(self, rows: np.ndarray, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`rows` and their patches, `batch` at a time."""
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}")
        for start in range(0, len(rows), batch):
            yield rows[start : start + batch], self.gather(rows[start : start + batch])

    # Evaluation

    @property
    def pair_names(self) -> list[str]:
        """The evaluation pair lists."""
        return [entry.name for entry in self.manifest.pairs]

    def pairs(self, name: str | None = None) -> PairList:
        """An evaluation pair list; None means the only one.

        Raises MissingError if there is none, InputError for None where there are several, UnknownNameError."""
        if not self.pair_names:
            raise MissingError(f"{self.path} has no evaluation pairs: ingest a data set that comes with a pair file")
        if name is None and len(self.pair_names) > 1:
            raise InputError(f"{self.path} has the pair lists {', '.join(self.pair_names)}: name the one to use")
        if name is not None and name not in self.pair_names:
            raise UnknownNameError(f"pair list of {self.path}", name, self.pair_names)
        entry = self.manifest.pairs[0 if name is None else self.pair_names.index(name)]
        table = np.load(self.path / entry.file, allow_pickle=False)
        return PairList(entry.name, table[:, 0].copy(), table[:, 1].copy(), table[:, 2].astype(bool), entry.lost)

    # Integrity

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 over the shards' checksums and the columns that mining depends on (label, used, split)."""
        columns = {n: self.manifest.columns[n].sha256 for n in ("label", "used", "split") if n in self.manifest.columns}
        content = {"shards": [s.sha256 for s in self.manifest.shards], "columns": columns, "splits": self.split_names}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def rejects(self) -> list[tuple[bytes, str]]:
        """(source, reason) of everything that did not become a patch."""
        return rejects_from_csv(self.path / self.manifest.rejects.file)

    def verify(self) -> list[str]:
        """Read every file again; one line per file that is missing or whose bytes are not those that were written."""
        problems = []
        for entry in self.manifest.files():
            path = self.path / entry.file
            if not path.is_file():
                problems.append(f"{path} is missing")
            elif sha256_file(path) != entry.sha256:
                problems.append(f"{path} is damaged: its SHA-256 is not the one in the manifest")
        return problems

    def _column(self, name: str) -> np.ndarray:
        if name not in self._columns:
            values = np.load(self.path / self.manifest.columns[name].file, allow_pickle=False)
            if len(values) != len(self):
                raise StoreError(f"column {name!r} of {self.path} has {len(values)} values for {len(self)} patches")
            self._columns[name] = _frozen(values)
        return self._columns[name]

    @cached_property
    def _shard_offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum([shard.rows for shard in self.manifest.shards])]).astype(np.int64)

    @cached_property
    def _maps(self) -> list[memoryview]:
        shards = self.manifest.shards
        return [map_patches(self.path / s.file, (s.rows, *self.pixel_shape)).reshape(-1).data for s in shards]


def _frozen(values: np.ndarray) -> np.ndarray:
    values.setflags(write=False)
    return values
