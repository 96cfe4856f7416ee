"""hardmine against what one would use instead, as ratios measured in one run: python benchmarks/run.py [NAME ...]

Each row alternates the two sides and takes the fastest of several runs of each, so that a busy machine disturbs both
alike. A ratio above the budget is good; the budget is the least we accept. Data is made in a temporary folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
Row = tuple[str, str, float, float]  # what, how it was measured, ratio, budget


def fastest(*sides: Callable[[], object], runs: int = 7) -> list[float]:
    """Seconds of the fastest run of each side, the sides taking turns, after one warm-up each."""
    for side in sides:
        side()
    best = [float("inf")] * len(sides)
    for _ in range(runs):
        for i, side in enumerate(sides):
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


def gather(work: Path) -> list[Row]:
    import h5py

    from hardmine.pipeline.ingest import ingest
    from hardmine.store.patches import PatchStore

    phototour_folder(work / "gather.raw", 1563)
    ingest("phototour", work / "gather.raw", work / "gather", shard_rows=65536)
    store = PatchStore.open(work / "gather")
    memory = torch.from_numpy(store.gather(np.arange(len(store))))
    rows = np.random.default_rng(1).integers(0, len(store), 2048)
    index, ordered = torch.from_numpy(rows), np.unique(rows)
    files = [h5py.File(p)["patches"] for p in sorted((work / "gather" / "shards").glob("*.h5"))]
    offsets = np.cumsum([0, *(len(f) for f in files)])

    def by_h5py() -> None:
        for file, low, high in zip(files, offsets, offsets[1:], strict=False):
            file[ordered[(ordered >= low) & (ordered < high)] - low]

    ours, select, plain = fastest(lambda: store.gather(rows), lambda: torch.index_select(memory, 0, index), by_h5py)
    what = f"gather 2048 of {len(store):,} patches, {len(files)} shards"
    return [
        (what, f"{1e3 * ours:.2f} ms; torch index_select in memory {1e3 * select:.2f} ms", select / ours, 0.4),
        (what, f"h5py fancy indexing {1e3 * plain:.1f} ms", plain / ours, 10),
    ]


def plan(work: Path) -> list[Row]:
    from hardmine.mining.class_distances import StoredDistances
    from hardmine.mining.entries import Entries
    from hardmine.mining.samplers import samplers

    classes, per_class = 100_000, 15
    offsets = np.arange(classes + 1) * per_class
    pairs = per_class * (per_class - 1) // 2
    entries = Entries(np.arange(classes * per_class), np.zeros(classes * per_class, np.int16), offsets)
    sampler = samplers.get("adasample")(entries, pairs=1024, lag=1 << 20)
    values = np.random.default_rng(0).uniform(0.1, 1.5, classes * pairs).astype(np.float32)
    sampler.distances = StoredDistances(values, np.arange(classes + 1) * pairs, offsets)
    steps = iter(range(10**6))
    (ours,) = fastest(lambda: sampler.plan(next(steps)), runs=50)
    return [("AdaSample plan, 1024 pairs of 100,000 classes", f"{1e3 * ours:.2f} ms against 2 ms", 2e-3 / ours, 1)]


def loss(work: Path) -> list[Row]:
    from pytorch_metric_learning import losses as pml_losses
    from pytorch_metric_learning import miners as pml_miners

    from hardmine.mining.miners.hardest_in_batch import HardestInBatch
    from hardmine.train.losses.triplet_margin import TripletMargin

    x = torch.nn.functional.normalize(torch.randn(2048, 128), dim=1)
    labels = torch.arange(1024).repeat(2)
    miner, ours = HardestInBatch(), TripletMargin()
    their_miner, theirs = pml_miners.BatchHardMiner(), pml_losses.TripletMarginLoss(margin=1.0)

    def step() -> None:
        y = x.clone().requires_grad_()
        ours(y, miner(y.detach(), labels)).value.backward()

    def their_step() -> None:
        y = x.clone().requires_grad_()
        theirs(y, labels, their_miner(y, labels)).backward()

    a, b = fastest(step, their_step, runs=15)
    how = f"{1e3 * a:.1f} ms; pytorch-metric-learning's BatchHardMiner + TripletMarginLoss {1e3 * b:.1f} ms"
    return [("hardest-in-batch loss, forward and backward, 1024 x 128", how, b / a, 5)]


def ingest_phototour(work: Path) -> list[Row]:
    from PIL import Image

    from hardmine.pipeline.ingest import ingest
    from hardmine.pipeline.readers.phototour import PhotoTour

    source = work / "ingest.raw"
    phototour_folder(source, 40)
    count = 40 * 256

    def read() -> None:
        reader = PhotoTour(source, PhotoTour.Options())
        reader.candidates()
        for _ in reader.read(np.arange(count)):
            pass

    def torchvision_crops() -> None:
        patches = []
        for file in sorted(source.glob("*.bmp")):
            image = Image.open(file)
            for y in range(0, 1024, 64):
                for x in range(0, 1024, 64):
                    patches.append(np.asarray(image.crop((x, y, x + 64, y + 64)), np.uint8))
        torch.from_numpy(np.array(patches))

    def whole() -> None:
        shutil.rmtree(work / "ingested", ignore_errors=True)
        ingest("phototour", source, work / "ingested")

    def copy() -> None:
        shutil.rmtree(work / "copied", ignore_errors=True)
        shutil.copytree(source, work / "copied")
        subprocess.run(["sync", "-f", str(work / "copied")], check=True)

    a, b, c, d = fastest(read, torchvision_crops, whole, copy, runs=5)
    return [
        (f"bmp to {count:,} patches", f"{a:.3f} s; torchvision's crop loop {b:.3f} s", b / a, 4),
        ("ingest with checksums", f"{c:.3f} s; a copy of the same bytes, flushed {d:.3f} s", d / c, 0.7),
    ]


def network_passes(work: Path) -> list[Row]:
    from hardmine.mining.embed import embed_entries
    from hardmine.mining.mine import mine
    from hardmine.pipeline.ingest import ingest
    from hardmine.pipeline.pixels import prepare
    from hardmine.store.patches import PatchStore
    from hardmine.train.networks import build

    phototour_folder(work / "pass.raw", 24)
    ingest("phototour", work / "pass.raw", work / "pass")
    store, network = PatchStore.open(work / "pass"), build("l2net").eval()
    rows, view = np.arange(len(store)), np.zeros(len(store), np.int16)
    memory = torch.from_numpy(store.gather(rows))

    def bare() -> None:
        with torch.inference_mode():
            for start in range(0, len(memory), 1024):
                network(prepare(memory[start : start + 1024], network.side))

    a, b = fastest(lambda: embed_entries(store, rows, view, network), bare, runs=4)
    done = mine(store, work / "pass.mining", network, derive=("pairs",))
    rates = f"{len(store) / a:,.0f} patches/s; bare forward over memory {len(store) / b:,.0f}/s"
    how = f"{rates}; all of `mine` {done.seconds:.1f} s"
    return [("embedding pass", how, b / a, 0.95), *training_steps(store, work)]


def training_steps(store: object, work: Path) -> list[Row]:
    from hardmine.train.loop import train
    from hardmine.train.recipe import load_recipe

    def run(name: str, repeat: int) -> float:
        settings = [f"data.store={work / 'pass'}", "train.steps=12", "train.mine_every=100", "train.log_every=1"]
        folder = work / f"run-{name}-{repeat}"
        train(load_recipe(name, settings), folder)
        import json

        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        return min(line["seconds/step"] + line["seconds/loading"] for line in lines if "seconds/step" in line)

    times = {name: min(run(name, i) for i in range(2)) for name in ("hardnet", "adasample")}
    how = f"{times['adasample']:.3f} s; random pairs {times['hardnet']:.3f} s (mining apart)"
    return [("training step, AdaSample from the store", how, times["hardnet"] / times["adasample"], 1 / 1.03)]


def command_line(work: Path) -> list[Row]:
    (ours,) = fastest(
        lambda: subprocess.run([sys.executable, str(ROOT / "cli.py"), "--help"], capture_output=True, check=True)
    )
    return [("cli.py --help", f"{ours:.2f} s against 0.5 s", 0.5 / ours, 1)]


BENCHMARKS = {
    "gather": gather,
    "plan": plan,
    "loss": loss,
    "ingest": ingest_phototour,
    "network": network_passes,
    "cli": command_line,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all, and print a line per row."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.get_default_device()}")
    for name in names or list(BENCHMARKS):
        with tempfile.TemporaryDirectory() as folder:
            for what, how, ratio, budget in BENCHMARKS[name](Path(folder)):
                verdict = "ok" if ratio >= budget else "BELOW"
                print(f"{verdict:5}  {ratio:7.2f} x (budget {budget:.2f} x)  {what}: {how}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
