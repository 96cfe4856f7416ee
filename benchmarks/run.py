"""hardmine against what one would use instead, as ratios measured in one run: python benchmarks/run.py [NAME ...]

Each row alternates the two sides and takes the fastest of several runs of each, so that a busy machine disturbs both
alike. A ratio above the budget is good; the budget is the least we accept. Data is made in a temporary folder.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from gather import gather, stream
from ingest import ingest_phototour
from measure import Row, fastest, show
from mining import neighbours, network_passes, plan

ROOT = Path(__file__).parents[1]


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


def command_line(work: Path) -> list[Row]:
    (ours,) = fastest(
        lambda: subprocess.run([sys.executable, str(ROOT / "cli.py"), "--help"], capture_output=True, check=True)
    )
    return [("cli.py --help", f"{ours:.2f} s against 0.5 s", 0.5 / ours, 1)]


BENCHMARKS = {
    "gather": gather,
    "stream": stream,
    "plan": plan,
    "loss": loss,
    "ingest": ingest_phototour,
    "network": network_passes,
    "neighbours": neighbours,
    "cli": command_line,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all, and print a line per row."""
    show(BENCHMARKS[name] for name in names or BENCHMARKS)


if __name__ == "__main__":
    main(sys.argv[1:])
