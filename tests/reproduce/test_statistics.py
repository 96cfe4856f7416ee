"""Means, deviations, changes, and the one-sided Mann-Whitney test against slow and independent ones."""

import itertools
import statistics as reference

import pytest
from scipy.stats import mannwhitneyu

from hardmine.reproduce.statistics import p_value, relative_change, summarise

OURS, BASE = [1.61, 1.58, 1.70, 1.66, 1.52], [1.80, 1.69, 1.75, 1.91, 1.77]


def exact_p(values, baseline):
    """The share of all ways to choose which are `values` that give as small a U: no scipy, no formula."""

    def u(a, b):
        return sum((x > y) + 0.5 * (x == y) for x in a for y in b)

    everything, size = [*values, *baseline], len(values)
    seen = u(values, baseline)
    draws = []
    for chosen in itertools.combinations(range(len(everything)), size):
        inside = [everything[i] for i in chosen]
        outside = [everything[i] for i in range(len(everything)) if i not in chosen]
        draws.append(u(inside, outside) <= seen)
    return sum(draws) / len(draws)


def test_mean_and_sample_deviation():
    found = summarise(OURS, BASE, lower_is_better=True)
    assert found.mean == pytest.approx(reference.mean(OURS))
    assert found.deviation == pytest.approx(reference.stdev(OURS))
    assert found.count == 5
    assert found.change == pytest.approx(reference.mean(OURS) / reference.mean(BASE) - 1)


def test_p_is_the_exact_one_sided_one():
    assert p_value(OURS, BASE, lower_is_better=True) == pytest.approx(exact_p(OURS, BASE))
    assert p_value(OURS, BASE, lower_is_better=True) < 0.05 < p_value(BASE, OURS, lower_is_better=True)
    wanted = mannwhitneyu(OURS, BASE, alternative="greater").pvalue
    assert p_value(OURS, BASE, lower_is_better=False) == pytest.approx(wanted)


def test_there_is_no_p_below_five_seeds_of_either():
    assert p_value(OURS[:4], BASE, lower_is_better=True) is None
    assert p_value(OURS, BASE[:4], lower_is_better=True) is None
    assert p_value(OURS, BASE, lower_is_better=True) is not None


def test_one_figure_has_no_deviation_and_none_no_summary():
    one = summarise([2.0], [4.0], lower_is_better=True)
    assert (one.mean, one.deviation, one.change, one.p) == (2.0, None, -0.5, None)
    assert summarise([], BASE, lower_is_better=True) is None
    assert summarise([2.0], lower_is_better=True).change is None
    assert relative_change(1.0, 0.0) is None
