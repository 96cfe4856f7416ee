"""Batches for tests of the miners on distances, and whether draws are what they should be."""

import numpy as np
import torch
from scipy.stats import chisquare
from torch.nn.functional import normalize

from hardmine.mining.batch import Batch

NAMES = ["random", "semi-hard", "soft-hard", "distance-weighted", "linear-curriculum", "nonlinear-curriculum", "pads"]
VALID = [(name, {"self_regularisation": False} if name == "pads" else {}) for name in NAMES]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(sizes, dim=6, seed=0, dtype=torch.float32, draws=None):
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64))
    labels = labels[torch.randperm(len(labels), generator=seeded(seed))]
    x = normalize(torch.randn(len(labels), dim, generator=seeded(seed + 1), dtype=torch.float64)).to(dtype)
    return Batch(x, labels, generator=seeded(seed if draws is None else draws))


def on_a_line(positions, labels, draws=0):
    x = torch.tensor(positions, dtype=torch.float64)[:, None]
    return Batch(x, torch.tensor(labels), generator=seeded(draws))


def as_list(tuples):
    return list(zip(*(rows.tolist() for rows in (*tuples.triplets, tuples.item))))


def fits(counts, expected, alpha=1e-3):
    """Whether counts come from these probabilities; nothing may be where the probability is 0."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    assert (counts[expected == 0] == 0).all()
    some = expected > 0
    return (
        some.sum() == 1
        or chisquare(counts[some], expected[some] / expected[some].sum() * counts[some].sum()).pvalue > alpha
    )
