"""What the benchmarks share: taking turns, made-up data, and a line per row."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

Row = tuple[str, str, float, float]  # what, how it was measured, ratio, budget


def fastest(*sides: Callable[[], object], runs: int = 7, before: Callable[[], object] | None = None) -> list[float]:
    """Seconds of the fastest run of each side, the sides taking turns, after one warm-up each. before: called ahead of
    every timed run, and not timed."""
    for side in sides:
        side()
    best = [float("inf")] * len(sides)
    for _ in range(runs):
        for i, side in enumerate(sides):
            if before:
                before()
            began = time.perf_counter()
            side()
            best[i] = min(best[i], time.perf_counter() - began)
    return best


def phototour_folder(folder: Path, mosaics: int) -> None:
    """Mosaics of random patches, three to a point, with info.txt."""
    import cv2

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for m in range(mosaics):
        cv2.imwrite(str(folder / f"patches{m:04d}.bmp"), rng.integers(0, 256, (1024, 1024), np.uint8))
    (folder / "info.txt").write_text("".join(f"{i // 3} 0\n" for i in range(256 * mosaics)))


def show(benchmarks: Iterable[Callable[[Path], list[Row]]]) -> None:
    """Run each in a temporary folder and print a line per row."""
    import torch

    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.get_default_device()}")
    for benchmark in benchmarks:
        with tempfile.TemporaryDirectory() as folder:
            for what, how, ratio, budget in benchmark(Path(folder)):
                verdict = "ok" if ratio >= budget else "BELOW"
                print(f"{verdict:5}  {ratio:7.2f} x (budget {budget:.2f} x)  {what}: {how}", flush=True)
