"""Retrieval figures against pytorch-metric-learning's: python benchmarks/evaluation.py [small]

R@1 and MAP@R by leave-one-out, and by its AccuracyCalculator with k = "max_bin_count". Each side runs in a process of
its own, with the same number of threads, turn by turn; memory is the peak of the process during the call less what it
held before (data and libraries), so Linux only. The last row is ours alone, at 60,000 x 512.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from measure import Row, show

CLASSES = {
    "classes of 20": lambda n: np.full(n // 20, 20),
    "classes of 200": lambda n: np.full(n // 200, 200),
    "sizes of 4 to 400, as 1 / rank": lambda n: np.maximum(4, 400 // np.arange(1, n // 4 + 1)),
}
BUDGET, LARGE_BUDGET = 2.5, 2.0  # times as fast; GB


def data(classes: str, count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit descriptors float32 (count, dim) around random class centres, shuffled, and their labels."""
    rng = np.random.default_rng(0)
    size = CLASSES[classes](count)
    labels = rng.permutation(np.resize(np.repeat(np.arange(len(size)), size), count))
    x = rng.normal(size=(len(size), dim)).astype(np.float32)[labels]
    for start in range(0, count, 4096):
        part = x[start : start + 4096]
        part += 1.5 * rng.normal(size=part.shape).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, labels


def measure(side: str, classes: str, count: int, dim: int) -> None:
    """Print seconds, bytes and figures of one side as JSON; the work of the process that `run` starts."""
    x, labels = data(classes, count, dim)
    call = ours if side == "ours" else theirs
    call(x[:2000], labels[:2000])
    Path("/proc/self/clear_refs").write_text("5")  # peak = present
    before, began = memory("VmRSS"), time.perf_counter()
    figures = call(x, labels)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "bytes": memory("VmHWM") - before, "figures": figures}))


def ours(x: np.ndarray, labels: np.ndarray) -> list[float]:
    """R@1 and MAP@R."""
    from hardmine.protocols.retrieval_figures import Items, retrieve

    found = retrieve(Items(x, np.arange(len(x)), labels), ks=(1,), metrics=("r@k", "map@r"))
    return [float(found.values[name].mean()) for name in ("r@1", "map@r")]


def theirs(x: np.ndarray, labels: np.ndarray) -> list[float]:
    """The same from AccuracyCalculator."""
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    found = calculator.get_accuracy(x, labels)
    return [float(found[name]) for name in names]


def memory(what: str) -> int:
    """Bytes: VmRSS, held now, or VmHWM, the peak."""
    return int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0]) << 10


def run(side: str, classes: str, count: int, dim: int) -> dict:
    command = [sys.executable, __file__, side, classes, str(count), str(dim)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout)


def against_accuracy_calculator(count: int, runs: int) -> list[Row]:
    rows: list[Row] = []
    for classes in CLASSES:
        results = [(run("ours", classes, count, 128), run("theirs", classes, count, 128)) for _ in range(runs)]
        a, b = (min((pair[i] for pair in results), key=lambda r: r["seconds"]) for i in range(2))
        assert np.allclose(a["figures"], b["figures"], atol=1e-4), (a, b)
        what = f"R@1, MAP@R of {count:,} x 128, {classes}"
        how = f"{a['seconds']:.2f} s; AccuracyCalculator {b['seconds']:.2f} s"
        rows.append((what, how, b["seconds"] / a["seconds"], BUDGET))
        how = f"{a['bytes'] / 1e6:.0f} MB; AccuracyCalculator {b['bytes'] / 1e6:.0f} MB"
        rows.append((f"peak memory of the same, {classes}", how, b["bytes"] / a["bytes"], 2))
    return rows


def large(count: int) -> list[Row]:
    found = run("ours", "classes of 20", count, 512)
    used = found["bytes"] / 1e9
    how = f"{used:.2f} GB beside the data against {LARGE_BUDGET:.0f} GB; {found['seconds']:.0f} s"
    return [(f"peak memory, R@1, MAP@R of {count:,} x 512", how, LARGE_BUDGET / used, 1)]


def evaluation(work: Path) -> list[Row]:
    """All rows at full size."""
    return [*against_accuracy_calculator(20_000, 5), *large(60_000)]


def small(work: Path) -> list[Row]:
    """All rows at a size that only shows that they run."""
    return [*against_accuracy_calculator(4_000, 1), *large(4_000)]


if __name__ == "__main__":
    if len(sys.argv) == 5:
        measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        show([small if sys.argv[1:] == ["small"] else evaluation])
