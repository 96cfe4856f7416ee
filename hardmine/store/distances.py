"""Euclidean distances between listed pairs, the same bits on every device, and descriptors as search wants them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

from hardmine.errors import InputError, NumericalError

PAIRS_AT_ONCE = 1 << 11  # 128-d float32: gathered blocks of 1 MB stay in the cache
PAIRS_A_TASK = 1 << 14  # of a thread


def pair_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Euclidean distance of a[i] and b[i]: float32 (..., D) and (..., D) to float32 (...).

    Direct differences, exactly 0 for equal descriptors and symmetric. Squares are added as a fixed binary tree of
    single float32 operations, so the result depends neither on how many pairs are asked for at once, nor on the
    number of threads, nor on the device (every step is correctly rounded; no TF32, no fused multiply-add).
    """
    if a.device.type == "cpu":  # NumPy takes a third of torch's time, and its threads do not wait for each other
        return torch.from_numpy(np.asarray(_by_numpy(a.numpy(), b.numpy())))
    square = a - b
    square = square * square
    width = square.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        head, tail = square[..., : width - half], square[..., half:width]
        square = torch.cat([head + tail, square[..., width - half : half]], -1) if width % 2 else head + tail
        width = half
    return square[..., 0].double().sqrt().float()  # float32 sqrt is not correctly rounded in every build of torch


def _by_numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    square = a - b
    np.multiply(square, square, out=square)
    width = square.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        square[..., : width - half] += square[..., half:width]
        width = half
    return np.sqrt(square[..., 0].astype(np.float64)).astype(np.float32)


def listed_distances(x: torch.Tensor, first: torch.Tensor, y: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """`pair_distances(x[first], y[second])`, gathered a block of pairs at a time, on as many threads as torch has.
    first, second: int64 (P,)."""
    out = torch.empty(len(first), dtype=torch.float32, device=x.device)
    if x.device.type != "cpu":
        step = 64 * PAIRS_AT_ONCE
        for start in range(0, len(first), step):
            part = slice(start, start + step)
            out[part] = pair_distances(x.index_select(0, first[part]), y.index_select(0, second[part]))
        return out
    left, i, right, j, found = (each.numpy() for each in (x, first, y, second, out))

    def some(start: int) -> None:
        for at in range(start, min(start + PAIRS_A_TASK, len(i)), PAIRS_AT_ONCE):
            part = slice(at, min(at + PAIRS_AT_ONCE, start + PAIRS_A_TASK))
            found[part] = _by_numpy(left.take(i[part], axis=0), right.take(j[part], axis=0))

    tasks = range(0, len(i), PAIRS_A_TASK)
    threads = min(torch.get_num_threads(), len(tasks))
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, tasks))
    else:
        for start in tasks:
            some(start)
    return out


def as_descriptors(values: np.ndarray | torch.Tensor, rows: np.ndarray | None = None) -> np.ndarray:
    """Descriptors (N, D) of any float dtype and memory layout as C-contiguous float32.

    rows: int64 (N,), the row numbers to name in errors (positions where None). Raises InputError where the shape is not
    (N, D), NumericalError where a row is not finite or its squared norm overflows float32.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float32).numpy()
    values = np.asarray(values)
    if values.ndim != 2 or values.shape[1] == 0 or values.dtype.kind not in "fiu":
        raise InputError(f"descriptors must be numbers of shape (N, D), not {values.dtype} {values.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        out = np.ascontiguousarray(values, dtype=np.float32)
        good = np.isfinite(np.einsum("nd,nd->n", out, out))
    if not good.all():
        raise NumericalError(f"{not_finite(good, rows)}: they would poison every neighbour list, nothing was searched")
    return out


def as_tensor(values: np.ndarray, device: torch.device | str | None = None) -> torch.Tensor:
    """A tensor over the same memory (on another device, a copy), to be read only: arrays of a round are not writable,
    which torch would warn of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(values)).to("cpu" if device is None else device)


def not_finite(good: np.ndarray, rows: np.ndarray | None) -> str:
    """'3 of 900 descriptors are not finite (rows 5, 17, 40)' from a mask bool (N,) of the good ones."""
    bad = np.flatnonzero(~good)
    named = bad if rows is None else np.asarray(rows)[bad]
    listed = ", ".join(str(r) for r in named[:5]) + (", ..." if len(named) > 5 else "")
    return f"{len(bad)} of {len(good)} descriptors are not finite (rows {listed})"


@contextmanager
def full_float32() -> Iterator[None]:
    """No TF32 in matrix products and convolutions inside this block; the process's settings are put back after it."""
    matmul, convolution = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolution
