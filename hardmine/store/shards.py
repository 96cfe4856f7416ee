"""What the two kinds of shards have in common once they are opened: pixels by shard and place."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from hardmine.errors import StoreError
from hardmine.store.hdf5 import Hdf5Shards
from hardmine.store.manifest import Manifest
from hardmine.store.webdataset import TarShards


class Shards(Protocol):
    """All shards of a store, read-only. Nothing is opened before it is needed; threads may share it."""

    def gather(self, shard: np.ndarray, place: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """Pixels of the items at `place` int64 (n,) of `shard` int64 (n,): uint8 (n, *pixel_shape), or a list of uint8
        arrays where images differ in size. Raises StoreError for a damaged shard, ImageError for a damaged item."""
        ...

    def problems(self, shard: int) -> list[str]:
        """Read and decode every item of one shard; one line per thing that is wrong."""
        ...


def open_shards(path: Path, manifest: Manifest) -> Shards:
    """The shards of the store at `path`, of the manifest's kind. Raises StoreError where it contradicts itself."""
    files = [path / shard.file for shard in manifest.shards]
    rows = [shard.rows for shard in manifest.shards]
    if manifest.shards_kind == "webdataset":
        return TarShards(files, rows, manifest.colour, manifest.pixel_shape)
    if manifest.pixel_shape is None:
        raise StoreError(f"the manifest of {path} gives hdf5 shards no pixel shape: ingest the data set again")
    return Hdf5Shards(files, rows, manifest.pixel_shape)
