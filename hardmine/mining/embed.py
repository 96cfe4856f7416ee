"""The embedding pass: entries through a network, in fixed batches, so that a range redone gives the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError, NumericalError, UnknownNameError
from hardmine.pipeline.image_frame import ImageFrame, unit_interval
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
    batch: int | None = None,
) -> np.ndarray:
    """Descriptors float32 (n, D) of entries (rows int64 (n,), view int (n,), None for the items themselves). batch: at
    once; None is what the network says."""
    with ready(network, device):
        return embed_range(store, rows, view, network, views=views, batch=batch).descriptors


def embed_patches(
    patches: np.ndarray | Sequence[np.ndarray],
    network: Any,
    *,
    device: torch.device | str | None = None,
    batch: int | None = None,
) -> np.ndarray:
    """Descriptors float32 (n, D) of patches uint8 (n, H, W), or of n images of any sizes for an image network, that are
    in no store."""

    def gather(rows: np.ndarray) -> Any:
        return patches[rows] if isinstance(patches, np.ndarray) else [patches[i] for i in rows.tolist()]

    with ready(network, device):
        return _embed(gather, np.arange(len(patches)), None, network, None, batch, None).descriptors


def embed_range(
    store: PatchStore,
    rows: np.ndarray,
    view: np.ndarray | None,
    network: Any,
    *,
    views: Views | None = None,
    batch: int | None = None,
    dtype: str = "float32",
    progress: Callable[[int], None] | None = None,
) -> Embedded:
    """One task of an embedding pass: entries in batches of fixed size through a network that is `ready`; the pixels
    of the next batch are gathered while the network works on this one.

    dtype: 'float32', or 'bfloat16' or 'float16' for torch's autocast; descriptors are float32 in any case.

    Raises InputError where the store does not hold what the network takes, extra views come without their table or the
    network's output is not (n, dim), NumericalError naming the rows whose descriptors are not finite.
    """
    require_fit(store, network)
    if view is not None and views is None and np.any(view):
        raise InputError("entries with extra views need the view table (Views) that gives their angles")
    return _embed(store.gather, rows, view, network, views, batch, progress, dtype)


def _embed(
    gather: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
    view: np.ndarray | None,
    network: Any,
    views: Views | None,
    batch: int | None,
    progress: Callable[[int], None] | None,
    dtype: str = "float32",
) -> Embedded:
    batch = default_batch(network) if batch is None else batch
    if batch < 1:
        raise InputError(f"batch must be at least 1, not {batch}")
    half = half_precision(dtype)
    where = device_of(network)
    descriptors = np.empty((len(rows), network.dim), np.float32)
    constant = np.zeros(len(rows), bool)
    starts = range(0, len(rows), batch)
    frame = frame_of(network)
    with ThreadPoolExecutor(1) as pool, torch.inference_mode(), full_float32():
        upcoming = pool.submit(_pixels, gather, rows[:batch], frame)
        for start in starts:
            (pixels, constant[start : start + batch]), stop = upcoming.result(), min(start + batch, len(rows))
            if stop < len(rows):
                upcoming = pool.submit(_pixels, gather, rows[stop : stop + batch], frame)
            if frame is None:
                angle = None
                if view is not None and views is not None and view[start:stop].any():
                    angle = torch.from_numpy(views.angles(rows[start:stop], view[start:stop])).to(where)
                prepared = prepare(pixels.to(where), network.side, angle=angle)
            else:
                prepared = unit_interval(pixels, where)
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


def _pixels(
    gather: Callable[[np.ndarray], Any], rows: np.ndarray, frame: ImageFrame | None
) -> tuple[torch.Tensor, np.ndarray]:
    """Grey patches as they are, uint8 (n, H, W), or images in their frame, uint8 (n, channels, side, side); and bool
    (n,), which of the items are of one single value."""
    if frame is None:
        patches = gather(rows)
        return torch.from_numpy(patches), _is_constant(patches)
    threads = torch.get_num_threads()

    def fitted(part: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        items = gather(part)
        return frame.fit(items), _is_constant(items)

    with ThreadPoolExecutor(threads) as pool:  # decoding lets go of the interpreter
        parts = list(pool.map(fitted, (part for part in np.array_split(rows, threads) if len(part))))
    return torch.cat([pixels for pixels, _ in parts]), np.concatenate([constant for _, constant in parts])


def _is_constant(items: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    if isinstance(items, np.ndarray):
        flat = items.reshape(len(items), -1)
        return flat.min(1) == flat.max(1)
    return np.array([item.min() == item.max() for item in items], bool)


def constant_patches(store: PatchStore, rows: np.ndarray, batch: int = 1024) -> np.ndarray:
    """bool (n,): which of `rows` are patches with one single grey value. No network is needed for it."""
    parts = [_is_constant(items) for _, items in store.stream(rows, batch)]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def require_fit(store: PatchStore, network: Any, views: Views | None = None) -> None:
    """Raises InputError unless `network` can take the items of `store`, with rotated `views` where there are any."""
    if frame_of(network) is None:
        require_grey_patches(store)
    elif views is not None:
        raise InputError(f"network {network.name!r} takes images, and rotated views are made of grey patches only")


def frame_of(network: Any) -> ImageFrame | None:
    """How a network wants images; None for one that takes grey patches."""
    return getattr(network, "frame", None)


def default_batch(network: Any) -> int:
    """How many items a network embeds at once where nobody says otherwise."""
    return getattr(network, "batch", 1024)


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
