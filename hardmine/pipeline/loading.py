"""From batch plans to pixels: a dataset over a patch store that takes whole plans, and the prefetching loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

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
