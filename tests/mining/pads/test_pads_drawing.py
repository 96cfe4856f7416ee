"""Triplets drawn by a distribution over distances, against the probabilities that are stated."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.nn.functional import normalize

from hardmine.errors import InputError, MissingError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import miners
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.files import save_distribution
from hardmine.mining.pads.support import Support
from hardmine.options import check

LABELS = [0, 0, 0, 1, 1, 2, 2, 2, 2, 3]


def world(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = normalize(torch.randn(10, 3, generator=generator, dtype=torch.float64))
    return Batch(x, torch.tensor(LABELS), generator=torch.Generator())


def probabilities(batch, distribution, how, self_regularisation):
    """P(negative) and P(positive), (m, m) each, by loops over the specs' sentences."""
    x, labels, m = batch.descriptors.tolist(), batch.labels.tolist(), len(batch.labels)
    support, p = distribution.support, distribution.p
    negative, positive = np.zeros((m, m)), np.zeros((m, m))
    for a in range(m):
        bins = {}
        for j in range(m):
            d = math.dist(x[a], x[j])
            if not self_regularisation and labels[j] == labels[a]:
                continue
            if (support.oob != "merge" and d > support.high) or (support.oob == "zero" and d < support.low):
                continue
            bins.setdefault(sum(d > e for e in support.edges()[1:-1]), []).append(j)
        total = sum(p[k] * (len(rows) if how == "member" else 1) for k, rows in bins.items())
        for k, rows in bins.items():
            for j in rows:
                negative[a, j] = 0 if total == 0 else p[k] / (1 if how == "member" else len(rows)) / total
        if total == 0:
            others = [j for j in range(m) if labels[j] != labels[a]]
            negative[a, others] = 1 / len(others)
        own = [j for j in range(m) if labels[j] == labels[a] and (self_regularisation or j != a)]
        positive[a, own] = 1 / max(1, len(own))
    return negative, positive


@pytest.mark.parametrize("how", ["member", "bin"])
@pytest.mark.parametrize("self_regularisation", [True, False])
@pytest.mark.parametrize("oob", ["merge", "clip_low", "zero"])
def test_draws_follow_the_stated_probabilities(how, self_regularisation, oob):
    batch = world()
    options = {"low": 0.4, "high": 1.3, "n_support": 5, "oob": oob}
    miner = miners.get("pads")(draw=how, self_regularisation=self_regularisation, **options)
    miner.use(Distribution(Support(**options), (0.1, 0.5, 0.0, 0.4)))
    negatives, positives = np.zeros((10, 10)), np.zeros((10, 10))
    draws = 700
    for seed in range(draws):
        batch.generator.manual_seed(seed)
        tuples = miner(batch)
        np.add.at(negatives, (tuples.anchor, tuples.negative), 1)
        np.add.at(positives, (tuples.anchor, tuples.positive), 1)
    expected = probabilities(batch, miner.distribution, how, self_regularisation)
    for counts, p in zip((negatives, positives), expected):
        for a in range(10):
            if a == 9 and not self_regularisation:  # its class has no other row
                assert counts[a].sum() == 0
                continue
            assert counts[a].sum() == draws
            assert (counts[a][p[a] == 0] == 0).all()
            some = p[a] > 0
            assert some.sum() == 1 or chisquare(counts[a][some], p[a][some] * draws).pvalue > 1e-4


def test_self_regularisation_draws_the_anchor_itself_and_its_positives():
    batch = world()
    miner = miners.get("pads")(low=0.4, high=1.3, n_support=5)
    miner.use(Distribution(miner.distribution.support, (1.0, 0.0, 0.0, 0.0)))  # only what is near: the anchor is
    found = set()
    for seed in range(100):
        batch.generator.manual_seed(seed)
        tuples = miner(batch)
        assert tuples.skipped == 0
        found |= set(zip(tuples.anchor.tolist(), tuples.positive.tolist(), tuples.negative.tolist()))
    assert any(a == n for a, _, n in found)
    assert any(a == p for a, p, _ in found)
    assert all(LABELS[a] == LABELS[p] for a, p, _ in found)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), max_size=6),
    self_regularisation=st.booleans(),
    how=st.sampled_from(["member", "bin"]),
    oob=st.sampled_from(["merge", "clip_low", "zero"]),
    initial=st.sampled_from(["random", "uniform_low", "normal_high"]),
    high=st.sampled_from([0.2, 1.4]),
)
def test_labels_of_every_triplet_and_who_is_skipped(sizes, self_regularisation, how, oob, initial, high):
    labels = torch.tensor(list(itertools.chain(*([c] * size for c, size in enumerate(sizes)))), dtype=torch.int64)
    x = normalize(torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(len(labels))))
    batch = Batch(x, labels, generator=torch.Generator().manual_seed(0))
    options = {"draw": how, "oob": oob, "initial": initial, "high": high}
    tuples = miners.get("pads")(self_regularisation=self_regularisation, **options)(batch)
    a, p, n = tuples.triplets
    assert (labels[a] == labels[p]).all()
    assert len(tuples) + tuples.skipped == len(labels)
    if self_regularisation:
        assert tuples.skipped == 0 or (len(sizes) == 1 and oob != "merge")
    else:
        assert (labels[a] != labels[n]).all()
        assert (a != p).all()
        assert a.tolist() == [r for r, c in enumerate(labels.tolist()) if 1 < sizes[c] < len(labels)]


def test_the_distribution_in_force_is_that_of_the_last_call_of_use(tmp_path):
    miner = miners.get("pads")(initial="normal_low")
    assert miner.distribution == Distribution.starting(Support(), "normal_low")
    new = miner.distribution.times([1.25] * 29)
    miner.use(new)
    assert miner.distribution == new
    save_distribution(tmp_path / "last.safetensors", new)
    assert miners.get("pads")(saved=str(tmp_path / "last.safetensors")).distribution == new
    other = {"n_support": 31, "saved": str(tmp_path / "last.safetensors")}
    with pytest.raises(InputError, match=r"on the grid .*n_support=30.* this miner on .*n_support=31"):
        check(miners.get("pads"), other, "miner")
    with pytest.raises(MissingError, match="no file nowhere"):
        check(miners.get("pads"), {"saved": "nowhere"}, "miner")
    with pytest.raises(InputError, match="on the grid"):
        miner.use(Distribution.starting(Support(oob="zero")))


def test_its_options_are_checked():
    assert check(miners.get("pads"), {"initial": {"shape": "gaussian", "mu": 0.7, "sigma": 0.1}}, "miner")
    with pytest.raises(InputError, match=r"unknown initial distribution 'normal_lo'\. Did you mean 'normal_low'"):
        check(miners.get("pads"), {"initial": "normal_lo"}, "miner")
    with pytest.raises(InputError, match="low must be below high"):
        check(miners.get("pads"), {"low": 2.0}, "miner")
