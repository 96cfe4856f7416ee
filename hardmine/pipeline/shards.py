"""One shard of a patch store, made apart from all others: the unit of work that `ingest` repeats and resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from hardmine.errors import HardmineError, InputError
from hardmine.pipeline.readers.base import Reader, Reject
from hardmine.store.files import sha256_file, write_atomic
from hardmine.store.hdf5 import write_patches
from hardmine.store.manifest import SHARDS

OnBad = Literal["skip", "fail"]
_BLOCK = 1024  # items between two calls of progress


@dataclass(frozen=True)
class ShardTask:
    """A fixed slice of the label-sorted candidates, and how to read it. Picklable if the reader is.

    start: position of the slice. numbers: int64 (n,) its candidates, in the order of the store's rows. plan_key: hex
    key of the ingest, without which a finished shard is not believed."""

    reader: Reader
    store: Path
    number: int
    start: int
    numbers: np.ndarray
    pixel_shape: tuple[int, ...]
    plan_key: str
    on_bad: OnBad

    @property
    def path(self) -> Path:
        return self.store / SHARDS / f"{self.number:06}.h5"

    @property
    def record_path(self) -> Path:
        return self.path.with_suffix(".json")


class RejectedItem(BaseModel):
    """position: in the slice; source: its bytes, one character each (Latin-1), since they need not be UTF-8."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    position: int
    source: str
    reason: str


class ShardRecord(BaseModel):
    """What a finished shard holds: its slice [start, stop) without the rejected items. Written beside it until the
    store is committed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan_key: str
    start: int
    stop: int
    rows: int
    bytes: int
    sha256: str
    rejects: list[RejectedItem]


def write_shard(task: ShardTask, progress: Callable[[int], None] | None = None) -> ShardRecord:
    """Read the items of `task`, write its shard, then its record. `progress(n)`: n more items are done.

    The same task gives the same bytes. Raises InputError at the first bad item if task.on_bad is "fail", DiskError when
    the disk is full; neither leaves a partial file."""
    pixels = np.empty((len(task.numbers), *task.pixel_shape), np.uint8)
    kept = np.zeros(len(task.numbers), bool)
    rejects = []
    ascending = np.argsort(task.numbers, kind="stable")
    for position, item in _items(task, ascending, progress):
        if isinstance(item, Reject):
            if task.on_bad == "fail":
                raise bad_item(item)
            reason = item.reason.encode("utf-8", "backslashreplace").decode()  # it may quote a name that is not UTF-8
            rejects.append(RejectedItem(position=position, source=item.source.decode("latin1"), reason=reason))
        else:
            pixels[position], kept[position] = item, True
    task.path.parent.mkdir(exist_ok=True)
    written = write_patches(task.path, pixels if kept.all() else pixels[kept])
    record = ShardRecord(
        plan_key=task.plan_key,
        start=task.start,
        stop=task.start + len(task.numbers),
        rows=int(kept.sum()),
        bytes=written.bytes,
        sha256=written.sha256,
        rejects=sorted(rejects, key=lambda reject: reject.position),
    )
    write_atomic(task.record_path, record.model_dump_json().encode())
    return record


def bad_item(reject: Reject) -> InputError:
    """The error that on_bad="fail" stops with."""
    source = reject.source.decode("utf-8", "backslashreplace")
    return InputError(f"{source}: {reject.reason}. Mend it, or leave bad items out (on_bad 'skip').")


def finished_shard(task: ShardTask) -> ShardRecord | None:
    """The record of `task`'s shard if an earlier run finished it: right plan, slice, size and SHA-256."""
    try:
        record = ShardRecord.model_validate_json(task.record_path.read_bytes())
        size = task.path.stat().st_size
    except (FileNotFoundError, ValidationError):
        return None
    expected = (task.plan_key, task.start, task.start + len(task.numbers))
    if (record.plan_key, record.start, record.stop) != expected or size != record.bytes:
        return None
    if record.rejects and task.on_bad == "fail":
        return None
    return record if sha256_file(task.path) == record.sha256 else None


def _items(
    task: ShardTask, ascending: np.ndarray, progress: Callable[[int], None] | None
) -> Iterator[tuple[int, np.ndarray | Reject]]:
    """Yield (position in the slice, pixels or Reject), holding the reader to its contract."""
    done = 0
    for position, (number, item) in zip(ascending.tolist(), task.reader.read(task.numbers[ascending])):
        if number != task.numbers[position]:
            raise HardmineError(f"{type(task.reader).__name__} read item {number} for {task.numbers[position]}")
        if not isinstance(item, Reject) and (item.shape != task.pixel_shape or item.dtype != np.uint8):
            raise HardmineError(
                f"{type(task.reader).__name__} read item {number} as {item.dtype} {item.shape}, its pixel shape is "
                f"uint8 {task.pixel_shape}"
            )
        yield position, item
        done += 1
        if progress and (done % _BLOCK == 0 or done == len(ascending)):
            progress((done - 1) % _BLOCK + 1)
    if done != len(ascending):
        raise HardmineError(f"{type(task.reader).__name__} read {done} of {len(ascending)} items")
