"""From batch plans to pixels: a dataset over a patch store that takes whole plans, and the prefetching loader; and the
plans beside the batches of any other dataset."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from hardmine.errors import InputError
from hardmine.store.patches import PatchStore


class Plan(Protocol):
    """What loading needs of a batch plan."""

    @property
    def rows(self) -> np.ndarray:
        """int64 (m,) rows of the patch store."""
        ...

    def slots(self, rank: int, size: int) -> np.ndarray:
        """int64 (m / size,): the places in `rows` of one process of several; not asked for where there is one."""
        ...


class Transform(Protocol):
    """What becomes of items as `PatchStore.gather` gives them."""

    @property
    def draws(self) -> bool:
        """Whether it uses torch's global generator."""
        ...

    def __call__(self, items: Any, plan: Any, slots: np.ndarray | None = None) -> torch.Tensor:
        """A uint8 tensor of the plan's items, or of those in its `slots`."""
        ...


class Loaded(NamedTuple):
    """A batch, and the seconds that reading and transforming it took, in whichever process."""

    pixels: torch.Tensor
    plan: Any
    gather: float
    transform: float


class PatchDataset(Dataset[Any]):
    """A patch store as a torch dataset. `__getitems__(plan)` returns (pixels, plan): one gather for the whole batch,
    uint8 (m, H, W), or what `transform` makes of the items and the plan, for images. Use it with
    `DataLoader(batch_sampler=sampler, collate_fn=whole)`, or through `loader`.

    rank, size: of several processes that share each batch, this one reads its own part alone, see `Plan.slots`."""

    def __init__(self, store: PatchStore, transform: Transform | None = None, rank: int = 0, size: int = 1):
        self.store, self.transform, self.rank, self.size = store, transform, rank, size

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, row: Any) -> torch.Tensor:
        """Pixels of one row, uint8 (H, W)."""
        if isinstance(row, int | np.integer):
            return torch.from_numpy(self.store.gather(np.array([row])))[0]
        raise InputError(
            f"a row number was expected, not {type(row).__name__}: our samplers give whole batches, so pass them to "
            "DataLoader as batch_sampler=..., not as sampler=..."
        )

    def __getitems__(self, plan: Plan) -> tuple[torch.Tensor, Plan]:
        """Pixels and plan of a whole batch."""
        if not hasattr(plan, "rows"):
            raise InputError(
                "a batch plan was expected: pass our samplers to DataLoader as batch_sampler=..., not as sampler=..."
            )
        loaded = self.load(plan)
        return loaded.pixels, loaded.plan

    def load(self, plan: Plan) -> Loaded:
        """This process's part of a batch."""
        began = time.perf_counter()
        slots = None if self.size == 1 else plan.slots(self.rank, self.size)
        items = self.store.gather(plan.rows if slots is None else plan.rows[slots])
        gathered = time.perf_counter()
        pixels = torch.from_numpy(items) if self.transform is None else self.transform(items, plan, slots)
        return Loaded(pixels, plan, gathered - began, time.perf_counter() - gathered)


class PairedDataset(Dataset[Any]):
    """Any map-style dataset that has its items in the order of a patch store's rows. `__getitems__(plan)` returns
    (list of the plan's items, plan). Use it through `paired`."""

    def __init__(self, dataset: Dataset[Any]):
        self.dataset = dataset

    def __getitems__(self, plan: Plan) -> tuple[list[Any], Plan]:
        """Items and plan of a whole batch. Raises InputError for a batch without a plan, or rows that are not there."""
        if not hasattr(plan, "rows"):
            raise InputError(
                "a batch plan was expected: paired is for loaders with one of our samplers as batch_sampler"
            )
        rows, count = plan.rows.tolist(), len(self.dataset) if hasattr(self.dataset, "__len__") else None
        if count is not None and rows and max(rows) >= count:
            raise InputError(
                f"the plan of step {getattr(plan, 'step', '?')} has row {max(rows)}, and the dataset {count} items: it "
                "must have an item for each row of the patch store that the sampler is over, in their order"
            )
        many = getattr(self.dataset, "__getitems__", None)
        return (many(rows) if many is not None else [self.dataset[row] for row in rows]), plan


def paired(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader like `loader`, a DataLoader of any map-style dataset with one of our samplers as batch_sampler, whose
    batches are (what it collates, plan).

    Row i of the patch store is item i of the dataset. Views and flips of a plan are left to the user: `plan.views`,
    `plan.symmetries`. Raises InputError where the loader has no batch sampler, or an iterable dataset.
    """
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise InputError("paired takes a DataLoader of a map-style dataset made with batch_sampler=...")
    return DataLoader(
        PairedDataset(loader.dataset),
        batch_sampler=loader.batch_sampler,
        collate_fn=partial(_collate_items, loader.collate_fn),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def _collate_items(collate: Callable[[list[Any]], Any], batch: tuple[list[Any], Plan]) -> tuple[Any, Plan]:
    return collate(batch[0]), batch[1]


def whole(batch: Any) -> Any:
    """The collate function for batches that are whole already."""
    return batch


class Batches:
    """What `loader` gives: iterating delivers (pixels, plan) of the steps that its sampler is set to, in plan order."""

    def __init__(self, plans: _TimedPlans, source: Iterable[Loaded]):
        self._plans, self._source = plans, source
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        batches = iter(self._source)
        while True:
            began, planning = time.perf_counter(), self._plans.seconds
            loaded = next(batches, None)
            planned = self._plans.seconds - planning
            self._seconds["plan"] += planned
            self._seconds["loading"] += time.perf_counter() - began - planned
            if loaded is None:
                return
            self._seconds["ahead/gather"] += loaded.gather
            self._seconds["ahead/transform"] += loaded.transform
            yield loaded.pixels, loaded.plan

    def seconds(self) -> dict[str, float]:
        """Seconds since this was asked last. plan: making plans; loading: waiting for a batch beyond that;
        ahead/gather, ahead/transform: the work on the batches, which is done beside other things where there are loader
        workers or a thread, and is a part of `loading` where there is neither."""
        spent, self._seconds = dict(self._seconds), defaultdict(float)
        return spent


def loader(
    store: PatchStore,
    sampler: Sampler[Any],
    workers: int,
    depth: int,
    transform: Transform | None = None,
    rank: int = 0,
    size: int = 1,
) -> Batches:
    """Batches of `sampler`'s plans, in plan order. depth: how many may be prefetched; the plan of a step is asked for
    that many steps ahead, so it must stay below the sampler's lag. rank, size, transform: see `PatchDataset`; all
    picklable.

    workers: processes. Without any a thread gathers the next batch while this one is used, if depth allows it and
    `transform` does not draw from torch's global generator. Worker processes start from a fork server, since a forked
    copy of a process that has run torch threads can hang; they open the store by themselves. With a GPU pixels come in
    pinned memory. Raises InputError where `depth` does not allow so many workers."""
    plans, pin = _TimedPlans(sampler), torch.cuda.is_available()
    dataset = _Parts(store, transform, rank, size)
    if workers == 0:
        return Batches(plans, _Ahead(dataset, plans, 0 if transform is not None and transform.draws else depth, pin))
    if depth < workers:
        raise InputError(
            f"{workers} loader workers prefetch at least {workers} batches, but the feedback lag allows {depth}: "
            "use at most that many workers, or a longer lag"
        )
    source: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=plans,
        collate_fn=whole,
        num_workers=workers,
        prefetch_factor=min(2, depth // workers),
        persistent_workers=True,
        multiprocessing_context="forkserver",
        pin_memory=pin,
        worker_init_fn=_end_with_the_parent,
    )
    return Batches(plans, source)


def _end_with_the_parent(worker: int) -> None:
    """Let a worker end when the process that started it is gone, killed perhaps. torch's own watch looks at the fork
    server, which lives as long as its workers do."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # it is a worker

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Parts(PatchDataset):
    """The dataset of `loader`, whose batches say how long they took."""

    def __getitems__(self, plan: Plan) -> Loaded:  # type: ignore[override]
        return self.load(plan)


class _TimedPlans(Sampler[Any]):
    """A batch sampler that adds up the seconds that its plans took."""

    def __init__(self, sampler: Sampler[Any]):
        self._sampler, self.seconds = sampler, 0.0

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        plans = iter(self._sampler)
        while True:
            began = time.perf_counter()
            plan = next(plans, None)
            self.seconds += time.perf_counter() - began
            if plan is None:
                return
            yield plan


class _Ahead:
    """Batches read in this process; by a thread, one batch ahead, where `depth` is 1 or more."""

    def __init__(self, dataset: PatchDataset, plans: _TimedPlans, depth: int, pin: bool):
        self._dataset, self._plans, self._depth, self._pin = dataset, plans, min(depth, 1), pin

    def _load(self, plan: Plan) -> Loaded:
        loaded = self._dataset.load(plan)
        return loaded._replace(pixels=loaded.pixels.pin_memory()) if self._pin else loaded

    def __iter__(self) -> Iterator[Loaded]:
        if self._depth == 0:
            yield from map(self._load, self._plans)
            return
        with ThreadPoolExecutor(1) as pool:
            waiting: deque[Future[Loaded]] = deque()
            for plan in self._plans:
                waiting.append(pool.submit(self._load, plan))
                if len(waiting) > self._depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
