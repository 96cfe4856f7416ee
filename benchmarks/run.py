"""hardmine against what one would use instead, as ratios measured in one run: python benchmarks/run.py [NAME ...]

Each row alternates the two sides and takes the fastest of several runs of each, so that a busy machine disturbs both
alike. A ratio above the budget is good; the budget is the least we accept. Data is made in a temporary folder.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from gather import gather, stream
from ingest import ingest_phototour
from losses import loss_rows
from measure import Row, fastest, phototour_folder, show

ROOT = Path(__file__).parents[1]


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
    "stream": stream,
    "plan": plan,
    "losses": loss_rows,
    "ingest": ingest_phototour,
    "network": network_passes,
    "cli": command_line,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all, and print a line per row."""
    show(BENCHMARKS[name] for name in names or BENCHMARKS)


if __name__ == "__main__":
    main(sys.argv[1:])
