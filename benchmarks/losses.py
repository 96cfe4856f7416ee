"""Losses against pytorch-metric-learning's on the same descriptors: python benchmarks/losses.py"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from measure import Row, fastest, show
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Miner
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.train.losses import Loss
from hardmine.train.losses.lifted import Lifted
from hardmine.train.losses.n_pair import NPair
from hardmine.train.losses.triplet_margin import TripletMargin

Theirs = Callable[..., Tensor]


def loss_rows(work: Path) -> list[Row]:
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import LiftedStructureLoss, NPairsLoss, TripletMarginLoss
    from pytorch_metric_learning.miners import BatchHardMiner

    plain = LpDistance(normalize_embeddings=False)
    lifted = LiftedStructureLoss(neg_margin=1, pos_margin=0, distance=plain)
    return [
        _row(
            "hardest-in-batch loss",
            1024,
            5,
            TripletMargin(),
            TripletMarginLoss(margin=1.0),
            HardestInBatch(),
            BatchHardMiner(),
        ),
        _row("N-pair loss", 1024, 0.9, NPair(), NPairsLoss()),
        # theirs holds every positive pair against every negative pair: at 1024 pairs that is 34 GB
        _row("lifted structure loss", 64, 5, Lifted(), lifted),
    ]


def _row(
    what: str,
    pairs: int,
    budget: float,
    ours: Loss,
    theirs: Theirs,
    our_miner: Miner | None = None,
    their_miner: Theirs | None = None,
) -> Row:
    """Forward and backward of both on unit descriptors of 128 numbers."""
    x = torch.nn.functional.normalize(torch.randn(2 * pairs, 128), dim=1)
    labels = torch.arange(pairs).repeat(2)

    def step() -> None:
        batch = Batch.of_pairs(x.clone().requires_grad_(), labels)
        ours(batch, None if our_miner is None else our_miner(batch)).value.backward()

    def their_step() -> None:
        y = x.clone().requires_grad_()
        theirs(y, labels, None if their_miner is None else their_miner(y, labels)).backward()

    a, b = fastest(step, their_step, runs=15)
    names = type(theirs).__name__ if their_miner is None else f"{type(their_miner).__name__} + {type(theirs).__name__}"
    how = f"{1e3 * a:.1f} ms; pytorch-metric-learning's {names} {1e3 * b:.1f} ms"
    return (f"{what}, forward and backward, {pairs} pairs x 128", how, b / a, budget)


if __name__ == "__main__":
    show([loss_rows])
