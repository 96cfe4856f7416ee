"""From batch plans to pixels: a dataset over a patch store that takes whole plans, and the prefetching loader; and the
plans beside the batches of any other dataset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

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


Transform = Callable[[Any, Any], torch.Tensor]  # (items as `PatchStore.gather` gives them, plan) -> uint8 tensor


class PatchDataset(Dataset[Any]):
    """A patch store as a torch dataset. `__getitems__(plan)` returns (pixels, plan): one gather for the whole batch,
    uint8 (m, H, W), or what `transform` makes of the items and the plan, for images. Use it with
    `DataLoader(batch_sampler=sampler, collate_fn=whole)`, or through `loader`."""

    def __init__(self, store: PatchStore, transform: Transform | None = None):
        self.store, self.transform = store, transform

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
        items = self.store.gather(plan.rows)
        return torch.from_numpy(items) if self.transform is None else self.transform(items, plan), plan


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


def loader(
    store: PatchStore, sampler: Sampler[Any], workers: int, depth: int, transform: Transform | None = None
) -> DataLoader[Any]:
    """A DataLoader over `sampler`'s plans, in plan order. workers: processes; 0 gathers in this one. depth: how many
    batches may be prefetched; the plan of a step is asked for that many steps ahead, so it must stay below the
    sampler's lag. transform: see `PatchDataset`; picklable. Workers start from a fork server, since a forked copy of a
    process that has run torch threads can hang; they open the store by themselves. Raises InputError where `depth` does
    not allow so many workers."""
    if workers == 0:
        return DataLoader(PatchDataset(store, transform), batch_sampler=sampler, collate_fn=whole)
    if depth < workers:
        raise InputError(
            f"{workers} loader workers prefetch at least {workers} batches, but the feedback lag allows {depth}: "
            "use at most that many workers, or a longer lag"
        )
    return DataLoader(
        PatchDataset(store, transform),
        batch_sampler=sampler,
        collate_fn=whole,
        num_workers=workers,
        prefetch_factor=min(2, depth // workers),
        persistent_workers=True,
        multiprocessing_context="forkserver",
        pin_memory=torch.cuda.is_available(),
    )
