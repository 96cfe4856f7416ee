"""Training, mining and evaluation on a GPU against the bare network: python benchmarks/gpu.py [--seconds 60] [--small]

An L2-Net with AdaSample at 1024 pairs, from a store of generated patches, for about a minute; then a mining round, the
neighbour search, and an evaluation. Each phase's patches per second stand beside those of the network alone, forward
and backward over pixels that are on the device already. Then the step's options side by side, and how often a step
waits for the device. --small: a few tiny steps on whatever device there is, to see that it runs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measure import phototour_folder

VARIANTS: dict[str, list[str]] = {
    "float32": [],
    "bfloat16": ["train.autocast=bfloat16"],
    "float16": ["train.autocast=float16"],
    "compiled": ["train.compile=true"],
    "bfloat16, compiled": ["train.autocast=bfloat16", "train.compile=true"],
    "not fused": ["optimizer.fused=false"],
    "loader workers": ["data.loader_workers=2"],
}


def made_store(folder: Path, mosaics: int, pairs: int) -> Path:
    """A patch store of random patches, three to a class, with a list of pairs to evaluate."""
    from hardmine.pipeline.ingest import ingest

    phototour_folder(folder / "raw", mosaics)
    patches = 256 * mosaics
    rng = np.random.default_rng(1)
    first = 3 * rng.integers(patches // 3 - 1, size=2 * pairs)
    second = np.where(np.arange(2 * pairs) < pairs, first + 1, first + 3)
    rows = np.stack([first, first // 3, 0 * first, second, second // 3, 0 * first], 1)
    np.savetxt(folder / "raw" / f"m50_{pairs}_{pairs}_0.txt", rows, fmt="%d")
    ingest("phototour", folder / "raw", folder / "store")
    return folder / "store"


def waited(device: torch.device, work: Callable[[], object], times: int) -> float:
    """Seconds of one of `times` calls, the device waited for at the ends only."""
    work()
    _settle(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    _settle(device)
    return (time.perf_counter() - began) / times


def bare(device: torch.device, patches: int, times: int) -> tuple[float, float]:
    """Patches per second of the network alone: forward without gradient, and forward and backward."""
    from hardmine.train.networks import build

    network = build("l2net").to(device)
    pixels = torch.rand(patches, 1, network.side, network.side, device=device)

    def forward() -> None:
        with torch.inference_mode():
            network(pixels)

    def both() -> None:
        network(pixels).sum().backward()

    return patches / waited(device, forward, times), patches / waited(device, both, times)


def trained(store: Path, run: Path, device: torch.device, pairs: int, steps: int, *settings: str) -> Path:
    """The folder of a training of so many steps."""
    from hardmine.train.loop import train
    from hardmine.train.recipe import load_recipe

    every = max(1, steps // 4)
    fixed = [f"data.store={store}", f"train.pairs={pairs}", f"train.steps={steps}", f"train.mine_every={every}"]
    fixed += ["train.log_every=10", f"train.checkpoint_every={steps}", "mining.staleness_anchors=0"]
    return train(load_recipe("adasample", [*fixed, *settings]), run, device=device).path


def fastest_steps(run: Path) -> tuple[float, float]:
    """Seconds of a step, and those of waiting for its batch, in the fastest stretch between two lines of the log: what
    compiling took is in the others."""
    from hardmine.train.runs import Run

    parts, found, before = ("transform", "forward", "loss", "backward", "optimiser"), [], 0
    for line in Run.open(run).log():
        if "seconds/forward" in line:
            steps = line["step"] - before
            step, loading = sum(line[f"seconds/{part}"] for part in parts), line["seconds/loading"]
            found.append((step / steps, loading / steps))
            before = line["step"]
    return min(found)


def waits_for_the_device(store: Path, run: Path, device: torch.device, pairs: int) -> int | None:
    """How often ten steps made the host wait for the device, as torch counts it; None where there is none to wait for.
    What mining and the ends of the run need is in it."""
    if device.type != "cuda":
        return None
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trained(store, run, device, pairs, 10)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in seen)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(seconds: float, small: bool) -> None:
    from hardmine.mining.mine import mine
    from hardmine.protocols.evaluate import evaluate
    from hardmine.store.patches import PatchStore
    from hardmine.store.search import nearest
    from hardmine.train.runs import Run, load

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pairs, mosaics, times = (8, 1, 1) if small else (1024, 240, 30)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print(f"torch {torch.__version__} on {name}, {pairs} pairs a batch")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        store = made_store(work, mosaics, 100 if small else 50_000)
        forward, both = bare(device, 2 * pairs, times)
        print(f"{'network alone, forward':36} {forward:12,.0f} patches/s")
        print(f"{'network alone, forward and backward':36} {both:12,.0f} patches/s")
        steps = 4 if small else max(40, round(seconds * both / (2 * pairs)))
        began = time.perf_counter()
        run = Run.open(trained(store, work / "run", device, pairs, steps))
        took = time.perf_counter() - began
        rate = 2 * pairs * steps / took
        print(f"{'training, mining and all':36} {rate:12,.0f} patches/s  {rate / both:6.2f} of the network alone")
        for line in run.phases():
            speed = 2e3 * pairs / line["ms per step"] if line["ms per step"] else float("inf")
            share = "" if line["share"] is None else f"{100 * line['share']:5.1f} % of the time"
            print(f"  {line['phase']:34} {speed:12,.0f} patches/s  {line['ms per step']:9.3f} ms a step  {share}")
        opened, network = PatchStore.open(store), load(run.path)
        began = time.perf_counter()
        mined = mine(opened, work / "mining", network, derive=("pairs", "knn", "centroids"), device=device)
        rate = len(opened) / (time.perf_counter() - began)
        print(f"{'mining with neighbours':36} {rate:12,.0f} patches/s  {rate / forward:6.2f} of the network alone")
        descriptors = mined.round.descriptors()
        took = waited(device, lambda: nearest(descriptors, np.arange(len(descriptors)), 16, device=device), 1)
        print(f"{'16 nearest of all, exactly':36} {len(descriptors) / took:12,.0f} patches/s")
        began = time.perf_counter()
        report = evaluate("phototour", store, work / "mining", network=network, device=device)
        result = next(iter(report.results.values())).metrics
        what = f"evaluation of {report.embedded} new rows"
        print(f"{what:36} {time.perf_counter() - began:12.2f} s  {result}")
        count = 2 if small else 60
        for label in list(VARIANTS)[: 2 if small else None]:
            path = trained(store, work / label, device, pairs, count, *VARIANTS[label])
            step, loading = fastest_steps(path)
            print(f"{'step, ' + label:36} {2 * pairs / step:12,.0f} patches/s  loading {1e3 * loading:.2f} ms")
        waits = waits_for_the_device(store, work / "waits", device, pairs)
        print(f"ten steps made the host wait for the device {'(no GPU here)' if waits is None else waits} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    main(given.seconds, given.small)
