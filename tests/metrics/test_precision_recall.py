"""Average precision and ROC area against the obvious walk down the list."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.errors import InputError
from hardmine.metrics.precision_recall import (
    average_precision,
    average_precisions_of_ranks,
    precision_recall,
    roc_area,
    step_precision,
)


def slow(scores, labels, numpos=None):
    """(Python's ap, MATLAB's ap, ROC area), one entry at a time."""
    ranked = [label for _, label in sorted(zip(scores, labels), key=lambda pair: -pair[0])]  # Python's sort is stable
    positives, negatives = sum(ranked), len(ranked) - sum(ranked)
    total = positives if numpos is None else numpos
    ap = steps = area = 0.0
    true = false = 0
    precision = 1.0
    for seen, label in enumerate(ranked, start=1):
        true, false = true + label, false + (not label)
        before, precision = precision, true / seen
        if label:
            ap += (before + precision) / 2 / total
            steps += precision / total
        elif negatives and positives:
            area += true / positives / negatives
    return ap, steps, area


lists = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(lists, st.integers(0, 9))
def test_equal_to_the_walk_with_ties_and_unlisted_positives(entries, more):
    scores, labels = zip(*entries)
    assert roc_area(scores, labels) == pytest.approx(slow(scores, labels)[2], abs=1e-9)
    if sum(labels) + more:
        numpos = sum(labels) + more
        ap, steps, _ = slow(scores, labels, numpos)
        assert average_precision(scores, labels, numpos) == pytest.approx(ap, abs=1e-9)
        assert step_precision(scores, labels, numpos) == pytest.approx(steps, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(lists)
def test_places_of_the_positives_are_enough(entries):
    scores, labels = (np.array(column) for column in zip(*entries))
    if not labels.any():
        return
    ranks = np.flatnonzero(labels[np.argsort(-scores, kind="stable")]) + 1
    python, matlab = average_precisions_of_ranks(ranks)
    assert python == pytest.approx(average_precision(scores, labels), abs=1e-9)
    assert matlab == pytest.approx(step_precision(scores, labels), abs=1e-9)
    many = average_precisions_of_ranks(np.tile(ranks, (2, 3, 1)))
    assert many[0].shape == (2, 3)
    assert (many[0] == python).all()


def test_the_curve_starts_at_precision_one():
    precision, recall = precision_recall([3, 2, 1], [0, 1, 0])
    assert precision == pytest.approx([1, 0, 0.5, 1 / 3], abs=1e-9)
    assert recall.tolist() == [0, 0, 1, 1]


def test_equal_scores_count_in_the_order_given():
    assert step_precision([1, 1], [1, 0]) == 1
    assert step_precision([1, 1], [0, 1]) == 0.5
    assert roc_area([1, 1], [1, 0]) == 1
    assert roc_area([1, 1], [0, 1]) == 0


def test_nothing_to_find():
    assert average_precision([1, 2], [0, 0]) == step_precision([1, 2], [0, 0]) == 0
    assert roc_area([1, 2], [1, 1]) == 0
    assert average_precision([], [], 3) == 0


@pytest.mark.parametrize(
    ("scores", "labels", "numpos", "message"),
    [
        ([0.1, np.nan], [1, 0], None, "1 of 2 scores are not finite, entry 1"),
        ([0.1, 0.2], [1], None, r"shape \(2,\), labels \(1,\)"),
        ([0.1, 0.2], [1, 2], None, "other values than 0 and 1"),
        ([0.1, 0.2], [1, 1], 1, "numpos is 1, but 2 positives"),
    ],
)
def test_input_without_a_curve_is_refused(scores, labels, numpos, message):
    with pytest.raises(InputError, match=message):
        average_precision(np.array(scores), np.array(labels), numpos)
