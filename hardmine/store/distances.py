"""Euclidean distances between listed pairs, the same bits on every device, and descriptors as search wants them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hardmine.errors import InputError, NumericalError

PAIRS_AT_ONCE = 1 << 12  # 128-d float32: gathered blocks of 2 MB stay in the cache


def pair_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Euclidean distance of a[i] and b[i]: float32 (..., D) and (..., D) to float32 (...).

    Direct differences, exactly 0 for equal descriptors and symmetric. Squares are added as a fixed binary tree of
    single float32 operations, so the result depends neither on how many pairs are asked for at once, nor on the
    number of threads, nor on the device (every step is correctly rounded; no TF32, no fused multiply-add).
    """
    square = a - b
    square = square * square
    width = square.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        head, tail = square[..., : width - half], square[..., half:width]
        square = torch.cat([head + tail, square[..., width - half : half]], -1) if width % 2 else head + tail
        width = half
    return square[..., 0].double().sqrt().float()  # float32 sqrt is not correctly rounded in every build of torch


def listed_distances(x: torch.Tensor, first: torch.Tensor, y: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """`pair_distances(x[first], y[second])`, gathered a block of pairs at a time. first, second: int64 (P,)."""
    out = torch.empty(len(first), dtype=torch.float32, device=x.device)
    step = PAIRS_AT_ONCE if x.device.type == "cpu" else 64 * PAIRS_AT_ONCE
    for start in range(0, len(first), step):
        part = slice(start, start + step)
        out[part] = pair_distances(x.index_select(0, first[part]), y.index_select(0, second[part]))
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
