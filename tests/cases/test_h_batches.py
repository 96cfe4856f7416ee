"""Sampling and batches: public bug reports as tests. The numbers are those of the bug-case log."""

import numpy as np
import pytest

from hardmine.mining.entries import Entries
from hardmine.mining.samplers import samplers
from hardmine.options import check


def sampler(draw, sizes):
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    kind = samplers.get("class-balanced")
    options = check(kind.Options, {"classes": 25, "per_class": 5, "draw": draw, "small": "repeat"}, "sampler")
    return kind(Entries(np.arange(offsets[-1]), np.zeros(offsets[-1], np.int16), offsets), options)


@pytest.mark.parametrize("draw", ["distinct", "pads", "pass"])
def test_94_coverage_of_a_pass_is_reported_and_can_be_guaranteed(draw):
    """100 classes of 50: four batches are as many classes, but only a pass has them all."""
    made = sampler(draw, [50] * 100)
    assert made.steps_per_pass == 4
    for last in range(4, 41, 4):
        seen = np.unique(np.concatenate([made.plan(step).labels for step in range(last - 4, last)]))
        assert made.scalars(last)["pass_coverage"] == len(seen) / 100
        assert (len(seen) == 100) == (draw == "pass")


def test_95_all_batches_are_full_and_a_pass_says_how_many_it_has():
    """458 items in classes of uneven sizes: no batch is short, and the classes left over come in another pass."""
    sizes = np.random.default_rng(0).multinomial(458 - 60, np.full(60, 1 / 60)) + 1
    made = sampler("pass", sizes)
    assert made.steps_per_pass == 2
    plans = list(made.between(0, 6 * made.steps_per_pass))
    assert len(plans) == len(made) == 12
    assert {len(plan) for plan in plans} == {125}
    seen = {label for plan in plans for label in plan.labels.tolist()}
    assert seen == set(range(60))
    assert made.scalars(12) == {"coverage": 1.0, "pass_coverage": 50 / 60}
