"""The slices of a plan become shards: in this process, in others, or on a cluster, resumed where a run was killed."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hardmine.errors import InputError, StoreError
from hardmine.pipeline.ingest_plan import Plan
from hardmine.pipeline.parallel import Advance, check_workers, run_tasks
from hardmine.pipeline.readers.base import Reader
from hardmine.pipeline.shards import OnBad, ShardRecord, ShardTask, finished_shard, read_shard
from hardmine.store.files import remove_partials
from hardmine.store.manifest import SHARDS


@dataclass(frozen=True)
class Where:
    """Where the work is done; see `run_tasks`. Raises InputError for what contradicts itself."""

    workers: int = 0
    scheduler: str | None = None
    in_flight: int | None = None

    def __post_init__(self) -> None:
        check_workers(self.workers, self.scheduler, self.in_flight)


@dataclass(frozen=True)
class _Slice:
    """number: of the shard. start: position in the plan's order. numbers: int64 (n,) candidates."""

    number: int
    start: int
    numbers: np.ndarray


@dataclass(frozen=True)
class _Writer:
    """What all slices have in common, sent to each worker once. Called, it gives the record of a slice's shard, and
    whether an earlier run had finished it; `read` does the first half of that, and what it returns the second."""

    source: Path
    task: ShardTask

    def of(self, piece: _Slice) -> ShardTask:
        return replace(self.task, number=piece.number, start=piece.start, numbers=piece.numbers)

    def __call__(self, piece: _Slice, advance: Advance) -> tuple[ShardRecord, bool]:
        return self.read(piece, advance)()

    def read(
        self, piece: _Slice, advance: Advance, memory: np.ndarray | None = None
    ) -> Callable[[], tuple[ShardRecord, bool]]:
        for path in (self.source, self.task.store):
            if not path.exists():
                raise InputError(f"a worker on {socket.gethostname()} does not see {path}: workers must share its disk")
        task = self.of(piece)
        record = finished_shard(task)
        if record is None:
            write = read_shard(task, advance, memory)
            return lambda: (write(), False)
        advance(len(piece.numbers))
        return lambda: (record, True)


def write_shards(
    reader: Reader,
    source: Path,
    store: Path,
    plan: Plan,
    shard_rows: int,
    on_bad: OnBad,
    where: Where,
    progress: Callable[[int, int], None] | None = None,
    first: int = 0,
) -> tuple[list[ShardRecord], int]:
    """Every shard's record, in the order of the plan, and how many of them an interrupted run had finished.

    first: number of the first shard. progress: called with (items done, items in all). Raises what `write_shard` and
    `run_tasks` raise; finished shards stay, unfinished ones leave nothing."""
    task = ShardTask(
        reader=reader,
        store=store.absolute(),
        number=first,
        start=0,
        numbers=np.empty(0, np.int64),
        pixel_shape=plan.form.pixel_shape,
        plan_key=plan.key,
        on_bad=on_bad,
        kind=plan.form.kind,
        pictures=plan.form.pictures,
    )
    writer = _Writer(source.absolute(), task)
    starts = range(0, len(plan.order), shard_rows)
    slices = [_Slice(first + i, start, plan.order[start : start + shard_rows]) for i, start in enumerate(starts)]
    records: dict[int, ShardRecord] = {}
    resumed = done = 0

    def advance(items: int) -> None:
        nonlocal done
        done += items
        if progress:
            progress(done, len(plan.order))

    if where.workers or where.scheduler is not None:
        running = run_tasks(
            writer,
            slices,
            workers=where.workers,
            scheduler=where.scheduler,
            in_flight=where.in_flight,
            progress=advance,
        )
    else:
        running = _write_behind(writer, slices, advance)
    try:
        for index, (record, was_there) in running:
            path = writer.of(slices[index]).path
            if not path.exists():
                raise StoreError(
                    f"a worker wrote {path}, which is not to be seen from here: workers must share its disk"
                )
            records[index] = record
            resumed += was_there
    finally:
        running.close()
        remove_partials(store / SHARDS)  # of workers that were ended
    return [records[index] for index in range(len(slices))], resumed


def _write_behind(
    writer: _Writer, slices: Sequence[_Slice], advance: Advance
) -> Generator[tuple[int, tuple[ShardRecord, bool]], None, None]:
    """`run_tasks` in this process, where a thread writes one shard while the next is read. The memory for the pixels of
    two is used again and again: fresh memory has to be cleared first. An error ends it once the other of the two is
    done; no shard is begun after it."""
    items = max((len(piece.numbers) for piece in slices), default=0)
    memory = np.empty((2, items * math.prod(writer.task.pixel_shape or (0,))), np.uint8)
    with ThreadPoolExecutor(1) as pool:
        written: Future[tuple[ShardRecord, bool]] | None = None
        for index, piece in enumerate(slices):
            write = writer.read(piece, advance, memory[index % 2])
            if written is not None:
                yield index - 1, written.result()
            written = pool.submit(write)
        if written is not None:
            yield len(slices) - 1, written.result()
