"""The embedding pass: entries through a network, in fixed batches, so that a range redone gives the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError, NumericalError, UnknownNameError
from hardmine.pipeline.pixels import prepare, require_grey_patches
from hardmine.pipeline.views import Views
from hardmine.store.distances import full_float32, not_finite
from hardmine.store.patches import PatchStore

Progress = Callable[[int, int], None]  # (entries done, entries in all)
DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}  # in which a network computes


@dataclass(frozen=True)
class Embedded:
    """descriptors: float32 (n, D). constant: bool (n,), patches with one single grey value."""

    descriptors: np.ndarray
    constant: np.ndarray


def embed_entries(
    store: PatchStore,
    rows: np.ndarray,
    view: np.ndarray | None,
    network: Any,
    *,
    views: Views | None = None,
    device: torch.device | str | None = None,
    batch: int = 1024,
) -> np.ndarray:
    """Descriptors float32 (n, D) of entries (rows int64 (n,), view int (n,), None for the items themselves)."""
    with ready(network, device):
        return embed_range(store, rows, view, network, views=views, batch=batch).descriptors


def embed_patches(
    patches: np.ndarray, network: Any, *, device: torch.device | str | None = None, batch: int = 1024
) -> np.ndarray:
    """Descriptors float32 (n, D) of patches uint8 (n, H, W) that are in no store."""
    with ready(network, device):
        return _embed(patches.__getitem__, np.arange(len(patches)), None, network, None, batch, None).descriptors


def embed_range(
    store: PatchStore,
    rows: np.ndarray,
    view: np.ndarray | None,
    network: Any,
    *,
    views: Views | None = None,
    batch: int = 1024,
    dtype: str = "float32",
    progress: Callable[[int], None] | None = None,
) -> Embedded:
    """One task of an embedding pass: entries in batches of fixed size through a network that is `ready`; the pixels
    of the next batch are gathered while the network works on this one.

    dtype: 'float32', or 'bfloat16' or 'float16' for torch's autocast; descriptors are float32 in any case.

    Raises InputError where the store holds other than grey patches, extra views come without their table or the
    network's output is not (n, dim), NumericalError naming the rows whose descriptors are not finite.
    """
    require_grey_patches(store)
    if view is not None and views is None and np.any(view):
        raise InputError("entries with extra views need the view table (Views) that gives their angles")
    return _embed(store.gather, rows, view, network, views, batch, progress, dtype)


def _embed(
    gather: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
    view: np.ndarray | None,
    network: Any,
    views: Views | None,
    batch: int,
    progress: Callable[[int], None] | None,
    dtype: str = "float32",
) -> Embedded:
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}")
    half = half_precision(dtype)
    where = device_of(network)
    descriptors = np.empty((len(rows), network.dim), np.float32)
    constant = np.zeros(len(rows), bool)
    starts = range(0, len(rows), batch)
    with ThreadPoolExecutor(1) as pool, torch.inference_mode(), full_float32():
        upcoming = pool.submit(gather, rows[:batch])
        for start in starts:
            pixels, stop = upcoming.result(), min(start + batch, len(rows))
            if stop < len(rows):
                upcoming = pool.submit(gather, rows[stop : stop + batch])
            flat = pixels.reshape(len(pixels), -1)
            constant[start:stop] = flat.min(1) == flat.max(1)
            angle = None
            if view is not None and views is not None and view[start:stop].any():
                angle = torch.from_numpy(views.angles(rows[start:stop], view[start:stop])).to(where)
            prepared = prepare(torch.from_numpy(pixels).to(where), network.side, angle=angle)
            with torch.autocast(where.type, half) if half is not None else nullcontext():
                # one alone goes through other kernels than the same one among others: it gets itself for company
                output = network(prepared) if len(pixels) > 1 else network(torch.cat([prepared, prepared]))[:1]
            if output.shape != (len(pixels), network.dim):
                raise InputError(
                    f"network {network.name} gave {tuple(output.shape)} for {len(pixels)} patches, "
                    f"not ({len(pixels)}, {network.dim})"
                )
            descriptors[start:stop] = output.to("cpu", torch.float32).numpy()
            if progress is not None:
                progress(stop - start)
    good = np.asarray(np.isfinite(descriptors).all(axis=1))
    if not good.all():
        raise NumericalError(
            f"network {network.name}: {not_finite(good, rows)}. Training has diverged or the weights are damaged; "
            "use an earlier checkpoint."
        )
    return Embedded(descriptors, constant)


def constant_patches(store: PatchStore, rows: np.ndarray, batch: int = 1024) -> np.ndarray:
    """bool (n,): which of `rows` are patches with one single grey value. No network is needed for it."""
    constant = np.zeros(len(rows), bool)
    for start in range(0, len(rows), batch):
        pixels = store.gather(rows[start : start + batch])
        flat = pixels.reshape(len(pixels), -1)
        constant[start : start + batch] = flat.min(1) == flat.max(1)
    return constant


def half_precision(dtype: str) -> torch.dtype | None:
    """The dtype for autocast, None for 'float32'. Raises UnknownNameError for another name."""
    if dtype not in DTYPES:
        raise UnknownNameError("autocast dtype", dtype, DTYPES)
    return DTYPES[dtype]


@contextmanager
def ready(network: Any, device: torch.device | str | None = None) -> Iterator[None]:
    """The network in evaluation mode and on `device` (None: where it is); mode and place are put back afterwards."""
    training = {module: module.training for module in network.modules()}
    home = device_of(network)
    away = device is not None and torch.device(device) != home
    try:
        network.eval()
        if away:
            network.to(device)
        yield
    finally:
        if away:
            network.to(home)
        for module, mode in training.items():
            module.training = mode


def device_of(network: Any) -> torch.device:
    """Where the network's weights are; the CPU for one without weights."""
    first = next(iter(network.parameters()), None)
    return torch.device("cpu") if first is None else first.device
