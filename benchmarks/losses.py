"""Losses against pytorch-metric-learning's on the same descriptors: python benchmarks/losses.py"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import Row, fastest, show
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Miner
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.mining.staged import Elapsed
from hardmine.train.losses import Loss, losses
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
        *_dsdml_rows(),
        # theirs holds every positive pair against every negative pair: at 1024 pairs that is 34 GB
        _row("lifted structure loss", 64, 5, Lifted(), lifted),
    ]


def _dsdml_rows() -> list[Row]:
    """DSDML's four losses, as published before it and with its selection and dynamic terms, each against the nearest
    that pytorch-metric-learning has (which has neither): on a batch of the paper, and on a large one."""
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import (
        ContrastiveLoss,
        GeneralizedLiftedStructureLoss,
        MultiSimilarityLoss,
        TripletMarginLoss,
    )

    cosine = CosineSimilarity()
    peers: dict[str, Theirs] = {
        "multi-similarity": MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
        "lifted-log": GeneralizedLiftedStructureLoss(neg_margin=1, pos_margin=0),
        "binomial-deviance": ContrastiveLoss(pos_margin=1, neg_margin=0, distance=cosine),
        "similarity-triplet": TripletMarginLoss(margin=0.5, distance=cosine),
    }
    return [
        _item_row(name, peer, items, dim, starred)
        for items, dim in ((125, 512), (1000, 128))
        for name, peer in peers.items()
        for starred in (False, True)
    ]


def _item_row(name: str, theirs: Theirs, items: int, dim: int, starred: bool) -> Row:
    """Forward and backward of both on unit descriptors, five of each class."""
    x = torch.nn.functional.normalize(torch.randn(items, dim), dim=1)
    labels = torch.arange(items // 5).repeat_interleave(5)
    kind: Any = losses.get(name)
    ours = kind(select=starred, dynamic=starred)
    ours.advance(Elapsed(5, 10))

    def step() -> None:
        ours(Batch(x.clone().requires_grad_(), labels)).value.backward()

    def their_step() -> None:
        theirs(x.clone().requires_grad_(), labels).backward()

    slow = items == 1000 and name == "similarity-triplet"  # theirs lists two million triplets
    a, b = fastest(step, their_step, runs=1 if slow else 7)
    how = f"{1e3 * a:.1f} ms; pytorch-metric-learning's {type(theirs).__name__} {1e3 * b:.1f} ms"
    return (f"{name}{'*' * starred}, forward and backward, {items} items x {dim}", how, b / a, 1.0)


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
