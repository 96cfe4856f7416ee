"""Every loss and regulariser, and one way to call them all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hardmine.mining.batch import Batch
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.mining.staged import Elapsed, Staged
from hardmine.train.losses import Loss, LossOutput, losses
from hardmine.train.losses.learnable import Learnable
from hardmine.train.regularisers import Regulariser, regularisers

# further options of what is found by name, beside its defaults
LOSS_VARIANTS = [
    ("aht", {"t": 0.5}),
    ("binomial-deviance", {"select": True, "dynamic": True}),
    ("contrastive", {"eps_pos": 0.2, "eps_neg": 1.0}),
    ("contrastive", {"eps_pos": 0.2, "negatives": "none"}),
    ("hardnet-contrastive", {"margin": 0.8}),
    ("ht", {"t": 0.5}),
    ("l2net", {"swap": False}),
    ("lifted", {"margin": 0.3}),
    ("lifted-log", {"dynamic": True, "lam": 0.5}),
    ("lifted-log", {"select": True, "dynamic": True, "epoch": "batch"}),
    ("multi-similarity", {"epsilon": 0.1}),
    ("multi-similarity", {"select": True, "dynamic": True, "first_epoch": 0}),
    ("n-pair", {"l2": 0.02}),
    ("n-pair-hinge", {"margin": 0.1}),
    ("similarity-triplet", {"select": True, "tau_b": 0.8}),
    ("similarity-triplet", {"select": True, "dynamic": True}),
    ("triplet-margin", {"margin": 0.3}),
    ("triplet-ranking", {"margin": 0.2, "epsilon": 1e-8}),
]
REGULARISER_VARIANTS = [
    ("decorrelation", {"weight": 0.1}),
    ("gor", {"alpha": 0.5, "second": "l1"}),
    ("gor", {"second": "l2", "moment": "larger"}),
    ("gor", {"negatives": "batch"}),
    ("gor", {"negatives": "batch", "moment": "larger"}),
    ("gor", {"negatives": "random"}),
    ("gor", {"negatives": "random", "moment": "larger"}),
    ("gor", {"negatives": "all", "second": "l1"}),
    ("gor", {"negatives": "all", "moment": "larger"}),
]


def every_loss() -> list[tuple[str, Loss]]:
    """(name, loss): all that are registered with their defaults, then the variants."""
    chosen = [*((n, {}) for n in losses.names()), *LOSS_VARIANTS]
    return [(name, started(losses.get(name)(**options))) for name, options in chosen]


def started(loss: Loss) -> Loss:
    """A loss that learns something for each class is given more classes than any batch here has, and one that changes
    over a run is late in it."""
    if isinstance(loss, Learnable):
        loss.start(256)
    if isinstance(loss, Staged):
        loss.advance(Elapsed(15, 20, 3))
    return loss


def every_regulariser() -> list[tuple[str, Regulariser]]:
    """(name, regulariser): all that are registered with their defaults, then the variants."""
    chosen = [*((name, {}) for name in regularisers.names()), *REGULARISER_VARIANTS]
    return [(name, regularisers.get(name)(**options)) for name, options in chosen]


def label(part: object) -> str:
    """The id of a parametrised test."""
    return part if isinstance(part, str) else repr(part).split("(", 1)[1].rstrip(")") or "defaults"


def some_batch(
    n: int = 9, dim: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64, overlap: bool = True
) -> Batch:
    """n unit pairs with a drawn negative each; pairs 0 and 1 are of one class, which pair n - 1 overlaps, and, where
    there are more than five pairs, pair 4 overlaps all."""
    x = torch.randn(3 * n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[n : 2 * n] = x[:n] + 0.4 * x[n : 2 * n]
    labels = torch.arange(n)
    labels[1] = 0
    not_negative = torch.zeros(n, n, dtype=torch.bool)
    not_negative[:2, n - 1] = not_negative[n - 1, :2] = True
    if n > 5:
        not_negative[4] = not_negative[:, 4] = True
    every = torch.cat([labels, labels, labels.roll(2)])
    return Batch(normalize(x).to(dtype), every, n, not_negative if overlap else None)


def some_items(sizes: tuple[int, ...] = (3, 1, 2, 4), dim: int = 6, seed: int = 0) -> Batch:
    """Unit descriptors of single items, float64, classes of these sizes, mixed."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    x = 1 + torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    return Batch(normalize(x), labels, generator=torch.Generator().manual_seed(seed))


def apply(loss: Loss, batch: Batch, weight: Tensor | None = None, negatives: str = "cross") -> LossOutput:
    """The loss of a batch, on hardest-in-batch tuples where it needs any."""
    miner = HardestInBatch(negatives=negatives)
    return loss(batch, miner(batch) if loss.needs_tuples else None, weight)
