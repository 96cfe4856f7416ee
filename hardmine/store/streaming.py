"""A pass over a patch store as a webdataset pipeline: whole shards go to nodes and workers, each item comes once.

Items come in the order of the store, class by class: made for passes over everything (embedding, copying, counting).
Training batches are made from row numbers, by samplers over `PatchStore.gather`, since no shuffle buffer mixes classes
that lie shards apart. A node or worker without a shard gets no item, so counts may differ between them; pass the
pipeline to `DataLoader(..., batch_size=None)`, or batch it with webdataset's own stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import webdataset as wds

from hardmine.store.decode import decode
from hardmine.store.webdataset import stream_tar

if TYPE_CHECKING:
    from hardmine.store.patches import PatchStore

_BLOCK = 1024  # items gathered at once from a shard that is no tar


def pipeline(store: PatchStore, rows: np.ndarray) -> Any:
    """A `webdataset.DataPipeline` of (row, pixels uint8) over `rows` int64, ascending.

    Iterating raises StoreError, naming the shard, where one is damaged. Picklable, so any start method of workers does.
    """
    ends = np.cumsum([shard.rows for shard in store.manifest.shards])
    cuts = np.searchsorted(rows, ends)
    parts = np.split(rows, cuts)[: len(ends)]
    numbers = [number for number, part in enumerate(parts) if len(part)]
    stages = (partial(_list, numbers), wds.split_by_node, wds.split_by_worker, partial(_read, store, parts))
    return wds.DataPipeline(*stages)


def _list(numbers: list[int]) -> Iterator[int]:
    yield from numbers


def _read(store: PatchStore, parts: list[np.ndarray], numbers: Iterable[int]) -> Iterator[tuple[int, np.ndarray]]:
    for number in numbers:
        if store.manifest.shards_kind == "webdataset":
            yield from _from_tar(store, number, parts[number])
        else:
            for start in range(0, len(parts[number]), _BLOCK):
                block = parts[number][start : start + _BLOCK]
                yield from zip(block.tolist(), store.gather(block))


def _from_tar(store: PatchStore, number: int, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The wanted items of a tar, which is read from start to end."""
    shard = store.manifest.shards[number]
    store.fetch(np.array([number]))
    first = sum(earlier.rows for earlier in store.manifest.shards[:number])
    wanted = np.zeros(shard.rows, bool)
    wanted[rows - first] = True
    for place, content in stream_tar(store.path / shard.file, shard.rows):
        if wanted[place]:
            row = first + place
            yield row, decode(content, store.manifest.colour, f"{store.path}: row {row}")
