"""Classes that meet in a batch by the learned distribution, against loops and the stated probabilities."""

import itertools

import numpy as np
import pytest
from scipy.stats import chisquare

from hardmine.mining.derive import class_centroids, nearest_classes
from hardmine.mining.pads.classes import class_log_weights, draw_places, item_distances
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.support import Support

SUPPORT = Support(low=0.2, high=1.2, n_support=6)
DISTRIBUTION = Distribution(SUPPORT, (0.1, 0.4, 0.2, 0.0, 0.3))


def slow_weight(d, distribution=DISTRIBUTION):
    return 0.0 if np.isnan(d) else distribution.p[sum(d > e for e in distribution.support.edges()[1:-1])]


def world(classes=30, k=8, seed=0, sizes=(1, 4)):
    rng = np.random.default_rng(seed)
    size = rng.integers(*sizes, classes, endpoint=True)
    x = rng.normal(size=(size.sum(), 3)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    offsets = np.concatenate([[0], np.cumsum(size)])
    centroids = class_centroids(x, offsets)
    return x, offsets, centroids, *nearest_classes(centroids, k)


def test_weights_are_those_of_the_bins():
    d = np.array([[0.0, 0.3, 0.5], [np.nan, 0.9, 1.9]])
    found = np.exp(class_log_weights(d, DISTRIBUTION))
    assert found.tolist() == [pytest.approx([slow_weight(v) for v in line]) for line in d.tolist()]
    zero = Distribution(Support(low=0.2, high=1.2, n_support=6, oob="zero"), DISTRIBUTION.q)
    assert np.exp(class_log_weights(d, zero)).tolist() == [pytest.approx([0, 0.1, 0.4]), [0, 0, 0]]


def test_partners_are_drawn_one_after_the_other_in_proportion():
    d = np.array([0.3, 0.5, 0.7, 0.9, 1.1, 0.55])
    weight = np.array([slow_weight(v) for v in d])
    counts, pairs, draws = np.zeros(6), {}, 6000
    rng = np.random.default_rng(0)
    for _ in range(draws):
        first, second = draw_places(d, DISTRIBUTION, 2, rng)
        counts[first] += 1
        pairs[first, second] = pairs.get((first, second), 0) + 1
    assert counts[3] == 0  # weight 0
    some = weight > 0
    assert chisquare(counts[some], weight[some] / weight.sum() * draws).pvalue > 1e-3
    observed, expected = [], []
    for i, j in itertools.permutations(np.flatnonzero(some), 2):
        observed.append(pairs.get((i, j), 0))
        expected.append(weight[i] / weight.sum() * weight[j] / (weight.sum() - weight[i]) * draws)
    assert chisquare(observed, expected).pvalue > 1e-3


def test_partners_at_the_ends():
    rng = np.random.default_rng(0)
    d = np.array([0.3, 0.9, 0.5])
    assert sorted(draw_places(d, DISTRIBUTION, 9, rng).tolist()) == [0, 2]  # the second has weight 0
    nothing_wanted = np.array([0.9, 0.9, np.nan])
    drawn = [draw_places(nothing_wanted, DISTRIBUTION, 1, rng)[0] for _ in range(400)]
    assert chisquare([drawn.count(0), drawn.count(1)]).pvalue > 1e-3
    assert set(drawn) == {0, 1}
    assert draw_places(np.zeros(0), DISTRIBUTION, 3, rng).tolist() == []


def test_item_distances_are_the_root_mean_square_over_both_classes():
    x, offsets, centroids, nearest, distance = world(12, 14)
    found = item_distances(centroids, nearest, distance)
    for c in range(12):
        for place, other in enumerate(nearest[c]):
            if other < 0:
                assert np.isnan(found[c, place])
                continue
            own, theirs = (x[offsets[i] : offsets[i + 1]].astype(float) for i in (c, other))
            squares = [np.sum((a - b) ** 2) for a in own for b in theirs]
            assert found[c, place] == pytest.approx(np.sqrt(np.mean(squares)), abs=1e-5)
