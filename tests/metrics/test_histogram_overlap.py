"""The overlap of two histograms against a plain loop, and a ROC curve that is thinned for drawing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.errors import InputError
from hardmine.metrics.overlap import overlap
from hardmine.metrics.roc import RocCurve, roc_curve, thinned


def slow(first, second, low, high, bins):
    """Shares of each bin, counted one number at a time."""
    width, shared = (high - low) / bins, 0.0
    for b in range(bins):
        share = []
        for sample in (first, second):
            inside = 0
            for value in sample:
                place = min(max(int(np.floor((value - low) / width)), 0), bins - 1)
                inside += place == b
            share.append(inside / len(sample))
        shared += min(share)
    return shared


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_it_equals_the_loop(n, m, bins, seed):
    rng = np.random.default_rng(seed)
    first, second = rng.integers(-10, 15, n) / 8 + 0.01, rng.integers(-6, 19, m) / 8 + 0.01  # off the edges
    found = overlap(first, second, -1.0, 1.0, bins)
    assert found.coefficient == pytest.approx(slow(first, second, -1.0, 1.0, bins), abs=1e-12)
    assert found.coefficient == overlap(second, first, -1.0, 1.0, bins).coefficient
    for density in (found.first, found.second):
        assert (density * np.diff(found.edges)).sum() == pytest.approx(1)


def test_known_cases():
    assert overlap([0.1, 0.2], [0.1, 0.2], 0, 1).coefficient == pytest.approx(1)
    assert overlap([0.1, 0.2], [0.8, 0.9], 0, 1).coefficient == 0
    assert overlap([0.1, 0.6], [0.6, 0.7], 0, 1, bins=2).coefficient == pytest.approx(0.5)
    assert overlap([-5.0], [0.0], 0, 1).coefficient == pytest.approx(1)  # beyond the bins counts in the end bin
    assert overlap([1.0], [0.995], 0, 1).coefficient == pytest.approx(1)  # the last bin holds its upper edge


def test_overlap_of_two_gaussians():
    rng = np.random.default_rng(0)
    found = overlap(rng.normal(-0.2, 0.2, 200_000), rng.normal(0.2, 0.2, 200_000), -1, 1).coefficient
    assert found == pytest.approx(0.3173, abs=0.006)  # 2 Phi(-1)


@pytest.mark.parametrize(
    ("first", "low", "high", "message"),
    [([], 0, 1, "first sample"), ([np.nan], 0, 1, "not finite, at 0"), ([1.0], 1, 1, "low < high")],
)
def test_what_has_no_overlap_is_refused(first, low, high, message):
    with pytest.raises(InputError, match=message):
        overlap(first, [0.5], low, high)


def test_a_thinned_roc_curve_is_short_and_stays_within_its_step():
    rng = np.random.default_rng(3)
    match = np.arange(100_000) < 50_000
    whole = roc_curve(rng.normal(size=100_000) - 2 * match, match)
    short = thinned(whole, steps=200)
    assert len(short.fpr) < 450
    assert (short.fpr[0], short.tpr[0], short.fpr[-1], short.tpr[-1]) == (0, 0, 1, 1)
    after = np.searchsorted(short.threshold, whole.threshold)  # the next point that was kept
    across = np.log10(np.maximum(short.fpr, 1e-5))[after] - np.log10(np.maximum(whole.fpr, 1e-5))
    up = short.tpr[after] - whole.tpr
    assert 0 <= across.min() <= across.max() <= 5 / 200
    assert 0 <= up.min() <= up.max() <= 1 / 200
    few = RocCurve(np.array([0, 0, 0.5, 1]), np.array([0, 0.5, 0.5, 1]), np.array([-np.inf, 1, 2, 3]))
    assert all(np.array_equal(a, b) for a, b in zip(thinned(few), few))
