"""The grid of distances and the distributions on it."""

import math

import numpy as np
import pytest
import torch

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.pads.distribution import PRESETS, Distribution, Initial
from hardmine.mining.pads.support import Support
from hardmine.options import check


@pytest.mark.parametrize("oob", ["merge", "clip_low", "zero"])
@pytest.mark.parametrize("support", [{}, {"low": 0.3, "high": 1.9, "n_support": 7}, {"n_support": 31}])
def test_bins_equal_counting_the_edges(oob, support):
    support = Support(oob=oob, **support)
    edges = support.edges()
    assert len(edges) == support.n_support == support.bins + 1
    distances = [0.0, 0.05, *edges, *np.nextafter(edges, 9), *np.nextafter(edges, -9), 1.95, 2.0]
    for d, found in zip(distances, support.bin_of(torch.tensor(distances, dtype=torch.float64)).tolist()):
        expected = sum(d > e for e in edges[1:-1])
        if (oob != "merge" and d > support.high) or (oob == "zero" and d < support.low):
            expected = -1
        assert found == expected
    table = torch.rand(4, 5) * 2
    assert support.bin_of(table.T).tolist() == support.bin_of(table).T.tolist()


def test_30_edges_make_29_bins_and_31_the_papers_30():
    assert (Support().bins, Support(n_support=31).bins) == (29, 30)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_equal_their_formula(name):
    mu, sigma = {
        "random": (None, None),
        "uniform_low": (0.5, 0.2),
        "uniform_avg": (1.0, 0.2),
        "uniform_high": (1.5, 0.2),
        "uniform_low_and_tight": (0.4, 0.1),
        "uniform_lowish_and_tight": (0.6, 0.1),
        "normal_low": (0.5, 0.05),
        "normal_avg": (1.1, 0.04),
        "normal_high": (1.6, 0.04),
    }[name]
    values = []
    for k in range(29):
        x = 0.1 + k * 1.3 / 29 + 2 / 30
        if mu is None:
            value = 1.0
        elif name.startswith("uniform"):
            value = float(mu - sigma <= x <= mu + sigma)
        else:
            value = math.exp(-((x - mu) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi * sigma)
        values.append(min(max(value, 1e-15), 1.0))
    assert Distribution.starting(Support(), name).q == pytest.approx([v / sum(values) for v in values], rel=1e-9)


def test_a_narrow_gaussian_is_cut_flat_and_the_other_shapes():
    q = np.array(Distribution.starting(Support(), "normal_low").q)
    x = Support().edges()[:-1] + 2 / 30
    assert (q == q.max()).tolist() == (np.abs(x - 0.5) < 0.0542).tolist()
    assert (q == q.max()).sum() >= 2
    for shape, mu, inside in (("heavyside", 0.8, x <= 0.8), ("distance", 0.0, x < 0.5)):
        found = np.array(Distribution.starting(Support(), Initial(shape=shape, mu=mu)).q)
        assert ((found > 1e-9) == inside).all()
    assert Distribution.starting(Support(), "uniform_low").p[3:12].sum() == pytest.approx(1)


def test_an_update_multiplies_clips_and_does_not_normalise():
    support = Support(n_support=4)
    first = Distribution(support, (0.5, 1e-25, 1e25))
    second = first.times([1.25, 0.8, 1.25])
    assert second.q == (0.625, 1e-25, 1e25)
    assert first.q == (0.5, 1e-25, 1e25)
    q, distribution = [0.2, 0.3, 0.5], Distribution(support, (0.2, 0.3, 0.5))
    for action in ([0.8, 1.0, 1.25], [1.25, 1.25, 0.8], [0.8, 0.8, 0.8]):
        distribution, q = distribution.times(action), [a * b for a, b in zip(q, action)]
    assert distribution.q == pytest.approx(q)
    assert distribution.p.tolist() == pytest.approx([v / sum(q) for v in q])


def test_what_does_not_fit_is_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'uniform_low'"):
        Distribution.starting(Support(), "uniform_lo")
    with pytest.raises(InputError, match="2 weights for a grid of 29 bins"):
        Distribution(Support(), (1.0, 1.0))
    for q in ((0.0, 0.0), (math.nan, 1.0), (-1.0, 2.0), (math.inf, 1.0)):
        with pytest.raises(InputError, match="finite, not negative, and not all 0"):
            Distribution(Support(n_support=3), q)
    with pytest.raises(InputError, match="low must be below high"):
        check(Support, {"low": 1.0, "high": 0.5}, "miner")
