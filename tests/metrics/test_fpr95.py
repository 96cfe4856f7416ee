"""FPR95 and the ROC curve against the obvious loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.errors import InputError, UnknownNameError
from hardmine.metrics.fpr95 import VARIANTS, fpr95
from hardmine.metrics.roc import roc_curve


def slow_threshold(distance, match, variant):
    """Walk through the matching distances one by one."""
    ascending = sorted(d for d, m in zip(distance, match) if m)
    for accepted, d in enumerate(ascending, start=1):
        if 100 * accepted >= 95 * len(ascending):
            return d if variant == "tie-safe" else ascending[accepted]
    raise AssertionError


def slow(distance, match, variant):
    pairs = list(zip(distance, match))
    negatives = sum(not m for m in match)
    if variant in ("tie-safe", "tian"):
        threshold = slow_threshold(distance, match, variant)
        return sum(d <= threshold for d, m in pairs if not m) / negatives
    true = count = 0
    for _, m in sorted(pairs, key=lambda pair: pair[0]):  # Python's sort is stable
        count += 1
        true += m
        if 100 * true >= 95 * sum(match):
            break
    return (count - true) / (negatives if variant == "hardnet" else count)


@settings(max_examples=60, deadline=None)
@given(st.integers(20, 150), st.integers(1, 150), st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_every_variant_equals_its_walk(positives, negatives, levels, seed):
    rng = np.random.default_rng(seed)
    match = rng.permutation(np.arange(positives + negatives) < positives)
    distance = rng.integers(levels, size=len(match)) / 7 + match * -0.3  # many ties
    for variant in VARIANTS:
        assert fpr95(distance, match, variant) == pytest.approx(slow(distance, match, variant), abs=1e-15)


def test_only_the_order_dependent_variants_see_the_order_of_tied_pairs():
    distance = np.full(40, 0.5)
    match = np.arange(40) < 20
    assert fpr95(distance, match, "tie-safe") == fpr95(distance[::-1], match[::-1], "tie-safe") == 1.0
    assert fpr95(distance, match, "hardnet") == 0.0
    assert fpr95(distance, match[::-1], "hardnet") == 1.0


def test_the_95_percent_are_counted_exactly():
    for positives in (1, 19, 20, 21, 60, 100, 5000):
        distance = np.append(np.arange(positives), [-(-95 * positives // 100) - 1, positives + 5])
        match = np.arange(positives + 2) < positives
        assert fpr95(distance, match) == 0.5
        assert fpr95(distance + np.append(np.zeros(positives), [0.5, 0]), match) == 0.0


def test_perfect_and_hopeless_descriptors():
    match = np.arange(40) < 20
    for variant in VARIANTS:
        assert fpr95(np.arange(40), match, variant) == 0.0
    assert fpr95(-np.arange(40), match) == 1.0


def test_tian_says_what_is_missing_below_20_matches():
    with pytest.raises(InputError, match="only 19 matching pairs"):
        fpr95(np.arange(30), np.arange(30) < 19, "tian")


@pytest.mark.parametrize(
    ("distance", "match", "message"),
    [
        ([0.1, 0.2], [True, True], "2 matching and 0 other"),
        ([0.1, 0.2], [False, False], "0 matching and 2 other"),
        ([], [], "0 matching and 0 other"),
        ([0.1, np.nan, np.inf], [True, False, True], "2 of 3 distances are not finite, pair 1 first"),
        ([0.1, 0.2], [True], r"shape \(2,\), match \(1,\)"),
        ([[0.1]], [[True]], "expected"),
        ([0.1, 0.2], [1, 2], "other values than 0 and 1"),
    ],
)
def test_input_without_a_rate_is_refused(distance, match, message):
    for function in (fpr95, roc_curve):
        with pytest.raises(InputError, match=message):
            function(np.array(distance), np.array(match))


def test_an_unknown_variant_names_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'legacy'"):
        fpr95([0.1, 0.2], [1, 0], "legazy")


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 80), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_roc_curve_equals_counting_at_every_threshold(pairs, levels, seed):
    rng = np.random.default_rng(seed)
    match = np.append(rng.random(pairs - 2) < 0.5, [True, False])
    distance = rng.integers(levels, size=pairs) / 3
    curve = roc_curve(distance, match)
    assert curve.threshold.tolist() == [-np.inf, *sorted(set(distance))]
    for fpr, tpr, threshold in zip(*curve):
        assert fpr == np.mean(distance[~match] <= threshold)
        assert tpr == np.mean(distance[match] <= threshold)
    assert fpr95(distance, match) == curve.fpr[np.argmax(curve.tpr >= 0.95 - 1e-12)]
