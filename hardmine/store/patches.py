"""PatchStore: a data set's patches or images on disk, found by row, with their classes, splits and evaluation pairs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hardmine.errors import InputError, MissingError, StoreError, UnknownNameError
from hardmine.store.location import as_url
from hardmine.store.manifest import Manifest, read_manifest, rejects_from_csv
from hardmine.store.shards import Shards, open_shards

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

        path may be an fsspec URL (s3://bucket/store): its shards are fetched into a cache as they are needed, see
        `RemotePatchStore`. Raises MissingError if there is no store, StoreError if a file is missing or of another
        size."""
        url = as_url(path)
        if url is not None:
            from hardmine.store.remote_patches import RemotePatchStore

            return RemotePatchStore.open_url(url)
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
    def pixel_shape(self) -> tuple[int, ...] | None:
        """(H, W) or (H, W, C) of every item; None where images differ in size."""
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

    def gather(self, rows: np.ndarray) -> Any:
        """The pixels of `rows` (any integers, in any order, repeats allowed), fresh: uint8 (n, *pixel_shape), or where
        `pixel_shape` is None a list of n arrays, each uint8 (H, W) or (H, W, 3).

        Raises InputError for a row outside 0..N-1; -1 is never the last row."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
            raise InputError(f"rows must be a one-dimensional integer array, not {rows.dtype} {rows.shape}")
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            wrong = rows[(rows < 0) | (rows >= len(self))][0]
            raise InputError(f"row {wrong} is not in {self.path}, which has the rows 0 to {len(self) - 1}")
        rows = rows.astype(np.int64)
        shard = np.searchsorted(self._shard_offsets, rows, side="right") - 1
        self.fetch(shard)
        return self._shards.gather(shard, rows - self._shard_offsets[shard])

    def fetch(self, shards: np.ndarray) -> None:
        """Make sure that the shards of these numbers can be read: a store on disk has them."""

    def stream(self, rows: np.ndarray, batch: int) -> Iterator[tuple[np.ndarray, Any]]:
        """`rows` and their pixels, as `gather` gives them, `batch` at a time."""
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}")
        for start in range(0, len(rows), batch):
            yield rows[start : start + batch], self.gather(rows[start : start + batch])

    def webdataset(self, split: str | None = None) -> Any:
        """The used rows of a split (None: of all) as a `webdataset.DataPipeline`, a torch IterableDataset of
        (row, pixels uint8), each once: the shards are divided among nodes (torch.distributed, or RANK and WORLD_SIZE),
        then among the workers of a DataLoader. See `store.streaming`."""
        from hardmine.store.streaming import pipeline

        return pipeline(self, np.flatnonzero(self.used) if split is None else self.rows(split))

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

    @property
    def shard_fingerprints(self) -> list[str]:
        """Hex SHA-256 of each shard. An append adds to the end and changes none of them."""
        return [shard.sha256 for shard in self.manifest.shards]

    def rejects(self) -> list[tuple[bytes, str]]:
        """(source, reason) of everything that did not become a patch."""
        return rejects_from_csv(self.path / self.manifest.rejects.file)

    def verify(
        self, *, decode: bool = True, workers: int = 1, progress: Callable[[int, int], None] | None = None
    ) -> list[str]:
        """Read every file again, and decode every item; one line per problem found, in the order of the manifest.

        decode: False compares checksums alone. workers: processes; 1 is this one. progress: called with (items done,
        items in all)."""
        from hardmine.store.verifying import verify

        return verify(self, decode, workers, progress)

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
    def _shards(self) -> Shards:
        return open_shards(self.path, self.manifest)


def _frozen(values: np.ndarray) -> np.ndarray:
    values.setflags(write=False)
    return values
