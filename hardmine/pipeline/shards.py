"""One shard of a patch store, made apart from all others: the unit of work that `ingest` repeats and resumes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from hardmine.errors import HardmineError, InputError
from hardmine.pipeline.pictures import PicturePolicy, apply, encode, render
from hardmine.pipeline.readers.base import Picture, Reader, Reject
from hardmine.store.decode import ImageError
from hardmine.store.files import sha256_file, write_atomic
from hardmine.store.hdf5 import write_patches
from hardmine.store.manifest import SHARDS, Shard, ShardKind, StoredFile, WrittenFile
from hardmine.store.webdataset import index_path, write_tar

OnBad = Literal["skip", "fail"]
_BLOCK = 1024  # items between two calls of progress


@dataclass(frozen=True)
class ShardTask:
    """A fixed slice of the label-sorted candidates, and how to read it. Picklable if the reader is.

    start: position of the slice. numbers: int64 (n,) its candidates, in the order of the store's rows. pixel_shape: of
    every stored item, or None (webdataset only) for images of several sizes. kind: of the shard. pictures: how images
    are stored; None where the reader gives pixels. plan_key: hex key of the ingest, without which a finished shard is
    not believed."""

    reader: Reader
    store: Path
    number: int
    start: int
    numbers: np.ndarray
    pixel_shape: tuple[int, ...] | None
    plan_key: str
    on_bad: OnBad
    kind: ShardKind = "hdf5"
    pictures: PicturePolicy | None = None

    @property
    def path(self) -> Path:
        return self.store / SHARDS / f"{self.number:06}{'.h5' if self.kind == 'hdf5' else '.tar'}"

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
    store is committed. files: the shard itself, then its index if it has one. counts: what the picture policy did to
    the items, for the table at the end of the stage; the numbers of all shards are added up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan_key: str
    start: int
    stop: int
    rows: int
    files: list[StoredFile]
    rejects: list[RejectedItem]
    counts: dict[str, int]

    def shard(self) -> Shard:
        """The shard's entry in the manifest."""
        index = self.files[1] if len(self.files) > 1 else None
        return Shard(**self.files[0].model_dump(), rows=self.rows, index=index)


def write_shard(task: ShardTask, progress: Callable[[int], None] | None = None) -> ShardRecord:
    """Read the items of `task`, write its shard, then its record. `progress(n)`: n more items are done.

    Pixels of one size are held in memory until they are written, images for tars only one at a time. The same task
    gives the same bytes. Raises InputError at the first bad item if task.on_bad is "fail", DiskError when the disk is
    full; neither leaves a partial file."""
    return read_shard(task, progress)()


def read_shard(
    task: ShardTask, progress: Callable[[int], None] | None = None, memory: np.ndarray | None = None
) -> Callable[[], ShardRecord]:
    """The first half of `write_shard`; what it returns is the second, which needs the reader no more and may be called
    in another thread. Pixels of one size are read in the first and written in the second; images for tars, of which one
    is in memory at a time, are read and written in the first.

    memory: uint8, at least as many as the pixels, which are put there until the second half is done; None: new."""
    task.path.parent.mkdir(exist_ok=True)
    items = _Items(task, progress)
    if task.kind == "hdf5" or task.pictures is None:
        return partial(_write, task, items, items.pixels(memory))
    record = _write(task, items, None)
    return lambda: record


def _write(task: ShardTask, items: _Items, pixels: np.ndarray | None) -> ShardRecord:
    """Write the shard, then its record. pixels: as `_Items.pixels` gives them, or None for images still to be read."""
    if pixels is not None and task.kind == "hdf5":
        files, rows = [_stored(task.path, write_patches(task.path, pixels))], len(pixels)
    else:
        members = items.files() if pixels is None else (encode(patch, "png") for patch in pixels)
        written = write_tar(task.path, task.number, members)
        files = [_stored(task.path, written.tar), _stored(index_path(task.path), written.index)]
        rows = written.rows
        items.counts["bytes of image files"] = written.content
        items.counts["bytes of tar headers and padding"] = written.tar.bytes - written.content
    record = ShardRecord(
        plan_key=task.plan_key,
        start=task.start,
        stop=task.start + len(task.numbers),
        rows=rows,
        files=files,
        rejects=sorted(items.rejects, key=lambda reject: reject.position),
        counts=dict(sorted(items.counts.items())),
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
        sizes = [(task.store / entry.file).stat().st_size for entry in record.files]
    except (FileNotFoundError, ValidationError):
        return None
    expected = (task.plan_key, task.start, task.start + len(task.numbers))
    if (record.plan_key, record.start, record.stop) != expected or sizes != [entry.bytes for entry in record.files]:
        return None
    if record.rejects and task.on_bad == "fail":
        return None
    same = all(sha256_file(task.store / entry.file) == entry.sha256 for entry in record.files)
    return record if same else None


class _Items:
    """One pass over the items of a task: the good ones come out, the bad ones gather in `rejects`."""

    def __init__(self, task: ShardTask, progress: Callable[[int], None] | None):
        self._task, self._progress = task, progress
        self.rejects: list[RejectedItem] = []
        self.counts: Counter[str] = Counter()

    def pixels(self, memory: np.ndarray | None) -> np.ndarray:
        """uint8 (rows, *pixel_shape), in the order of the rows. Read in the reader's order, which is cheaper."""
        task = self._task
        if task.pixel_shape is None:
            raise HardmineError("a task without a pixel shape has no array of pixels")
        shape = (len(task.numbers), *task.pixel_shape)
        pixels = np.empty(shape, np.uint8) if memory is None else memory[: math.prod(shape)].reshape(shape)
        kept = np.zeros(len(task.numbers), bool)
        for position, item in self._good([np.argsort(task.numbers, kind="stable")], self._pixels):
            pixels[position], kept[position] = item, True
        return pixels if kept.all() else pixels[kept]

    def files(self) -> Iterator[tuple[bytes, str]]:
        """(content, extension) of each image, in the order of the rows."""
        numbers = self._task.numbers
        runs = np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers) < 0) + 1)
        for _, item in self._good(runs, self._file):
            yield item

    def _pixels(self, item: np.ndarray | Picture) -> np.ndarray:
        policy = self._task.pictures
        if isinstance(item, Picture) and policy is not None:
            rendered = render(item, policy)
            self.counts.update(rendered.rules)
            item = rendered.pixels
        if isinstance(item, Picture) or item.shape != self._task.pixel_shape or item.dtype != np.uint8:
            found = "a picture" if isinstance(item, Picture) else f"{item.dtype} {item.shape}"
            raise HardmineError(f"{self._name} read {found}, its pixel shape is uint8 {self._task.pixel_shape}")
        return item

    def _file(self, item: np.ndarray | Picture) -> tuple[bytes, str]:
        policy = self._task.pictures
        if policy is None or not isinstance(item, Picture):
            raise HardmineError(f"{self._name} read an array, its items are pictures")
        encoded = apply(item, policy)
        if self._task.pixel_shape is not None and encoded.shape != self._task.pixel_shape:
            raise HardmineError(f"the picture policy gave {encoded.shape}, not {self._task.pixel_shape}")
        self.counts.update(encoded.rules)
        return encoded.content, encoded.extension

    def _good(
        self, runs: Iterable[np.ndarray], convert: Callable[[np.ndarray | Picture], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (position in the slice, convert(item)), run by run of positions whose candidates ascend."""
        for position, item in self._read(runs):
            stored = item if isinstance(item, Reject) else self._attempt(item, convert)
            if isinstance(stored, Reject):
                self._reject(position, stored)
            else:
                yield position, stored

    def _attempt(self, item: np.ndarray | Picture, convert: Callable[[np.ndarray | Picture], Any]) -> Any:
        """convert(item), or a Reject for a picture that cannot be used."""
        try:
            return convert(item)
        except ImageError as error:
            assert isinstance(item, Picture)  # pixels are not decoded
            self.counts[f"images rejected: {error.reason.partition(' (')[0]}"] += 1
            return Reject(item.name, error.reason)

    def _reject(self, position: int, item: Reject) -> None:
        if self._task.on_bad == "fail":
            raise bad_item(item)
        reason = item.reason.encode("utf-8", "backslashreplace").decode()  # it may quote a name that is not UTF-8
        self.rejects.append(RejectedItem(position=position, source=item.source.decode("latin1"), reason=reason))

    def _read(self, runs: Iterable[np.ndarray]) -> Iterator[tuple[int, np.ndarray | Picture | Reject]]:
        """Yield (position in the slice, item), holding the reader to its contract."""
        numbers, done = self._task.numbers, 0
        for run in runs:
            before = done
            for position, (number, item) in zip(run.tolist(), self._task.reader.read(numbers[run])):
                if number != numbers[position]:
                    raise HardmineError(f"{self._name} read item {number} for {numbers[position]}")
                yield position, item
                done += 1
                if self._progress and (done % _BLOCK == 0 or done == len(numbers)):
                    self._progress((done - 1) % _BLOCK + 1)
            if done - before != len(run):
                raise HardmineError(f"{self._name} read {done - before} of {len(run)} items")

    @property
    def _name(self) -> str:
        return type(self._task.reader).__name__


def _stored(path: Path, written: WrittenFile) -> StoredFile:
    return StoredFile(file=f"{SHARDS}/{path.name}", **written.model_dump())
