"""Random negatives in plans, the `patches` sampler, and TFeat's flips and turns: who is drawn, and how often."""

import itertools

import numpy as np
import pytest
import torch

from hardmine.errors import InputError
from hardmine.mining.entries import Entries
from hardmine.mining.samplers import samplers
from hardmine.pipeline.pixels import turn_and_flip

SIZES = [3, 1, 2, 5, 4, 0, 2, 6, 3]


def make(name="random", sizes=SIZES, pairs=5, draws=True, **settings):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.arange(100, 100 + offsets[-1])
    sampler = samplers.get(name)(Entries(rows, (rows % 3).astype(np.int16), offsets), pairs=pairs, **settings)
    sampler.draws_negatives = draws
    return sampler


def chi_squared(counts, p):
    expected = np.sum(counts) * np.asarray(p) / np.sum(p)
    return float(((np.asarray(counts) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("name", ["random", "patches"])
def test_a_negative_is_an_entry_of_another_class(name):
    sampler = make(name)
    label = sampler.entries.label
    for step in range(100):
        plan = sampler.plan(step)
        assert (len(plan), plan.pairs) == (15, 5)
        slot = plan.negative_row - 100
        assert np.array_equal(label[slot], plan.negative_label)
        assert np.array_equal(plan.negative_view, plan.negative_row % 3)
        assert not np.any(plan.negative_label == plan.label)
        assert list(plan) == [*plan.anchor_row, *plan.positive_row, *plan.negative_row]
        assert plan.views.tolist() == [*plan.anchor_view, *plan.positive_view, *plan.negative_view]
        assert plan.labels.tolist() == [*plan.label, *plan.label, *plan.negative_label]
        assert plan.symmetries.tolist() == plan.dihedral.tolist() * 3


@pytest.mark.parametrize("name", ["random", "patches"])
def test_the_pairs_are_those_of_a_plan_without_negatives(name):
    with_negatives, without = make(name, augment="tfeat"), make(name, augment="tfeat", draws=False)
    for step in range(20):
        one, other = with_negatives.plan(step), without.plan(step)
        assert one != other
        assert other.negative_row is other.negative_view is other.negative_label is None
        assert len(other) == 10
        for part in ("anchor_row", "positive_row", "anchor_view", "positive_view", "label", "weight", "dihedral"):
            assert np.array_equal(getattr(one, part), getattr(other, part))
        assert one == with_negatives.plan(step)
    assert with_negatives.plan(0) != with_negatives.plan(1)


@pytest.mark.parametrize("name", ["random", "patches"])
def test_negatives_are_uniform_over_the_other_classes_or_over_their_patches(name):
    sampler = make(name, sizes=[4, 1, 2, 3], pairs=3)
    label, counts = sampler.entries.label, np.zeros((4, 10))
    for step in range(4000):
        plan = sampler.plan(step)
        np.add.at(counts, (plan.label, plan.negative_row - 100), 1)
    size = np.array([4, 1, 2, 3])
    for c in (0, 2, 3):
        others = label != c
        p = np.ones(10) if name == "patches" else 1 / size[label]
        assert (counts[c, ~others] == 0).all()
        assert chi_squared(counts[c, others], p[others]) < {6: 20.6, 7: 22.5, 8: 24.4}[others.sum()]  # p = 0.001


def test_classes_that_overlap_are_no_negatives_however_many():
    sampler = make(sizes=[2] * 40, pairs=4)

    def overlaps(first, second):
        """Class 0 overlaps all but the last two, the others their successor."""
        low, high = np.minimum(first, second), np.maximum(first, second)
        return ((low == 0) & (high < 38)) | (high == low + 1)

    sampler.overlaps = overlaps
    of_first = []
    for step in range(1500):
        plan = sampler.plan(step)
        assert not overlaps(plan.label, plan.negative_label).any()
        assert not np.any(plan.label == plan.negative_label)
        of_first += plan.negative_label[plan.label == 0].tolist()
    counts = np.bincount(of_first, minlength=40)[38:]
    assert counts.sum() == len(of_first) > 100
    assert chi_squared(counts, [1, 1]) < 10.8


def test_a_class_without_a_random_negative_is_an_error_that_names_it():
    with pytest.raises(InputError, match="class 0 has no random negative"):
        make(sizes=[3], pairs=1).plan(0)
    sampler = make(sizes=[3, 0, 3], pairs=2)
    sampler.overlaps = lambda first, second: np.ones(len(first), bool)
    with pytest.raises(InputError, match=r"class [02] has no random negative.*lower data.exclude_overlap"):
        sampler.plan(0)


def test_patches_draws_anchors_evenly_from_the_entries_that_have_a_positive():
    sampler = make("patches", draws=False, pairs=12)  # more pairs than classes
    counts, pairs, repeated = np.zeros(26), np.zeros((26, 26)), 0
    for step in range(1000):
        plan = sampler.plan(step)
        np.add.at(counts, plan.anchor_row - 100, 1)
        np.add.at(pairs, (plan.anchor_row - 100, plan.positive_row - 100), 1)
        assert np.array_equal(sampler.entries.label[plan.positive_row - 100], plan.label)
        repeated += len(np.unique(plan.label)) < 12
    usable = np.isin(sampler.entries.label, np.flatnonzero(np.array(SIZES) >= 2))
    assert counts[~usable].sum() == 0
    assert chi_squared(counts[usable], np.ones(25)) < 51.2  # 24 degrees of freedom, p = 0.001
    assert (pairs.diagonal() == 0).all()
    six = pairs[17:23, 17:23]  # the class of six
    assert chi_squared(six[~np.eye(6, dtype=bool)], np.ones(30)) < 58.3  # 29 degrees of freedom
    assert repeated == 1000


def test_tfeats_flips_and_turns_are_drawn_as_published():
    """With probability 1/2 a quarter, half or three-quarter turn, evenly; then with probability 1/2 upside down."""
    image = torch.arange(9.0).view(1, 1, 3, 3)
    code_of = {tuple(turn_and_flip(image, torch.tensor([c])).flatten().tolist()): c for c in range(8)}
    expected = np.zeros(8)
    for turn, flip in itertools.product(range(4), (False, True)):
        turned = torch.rot90(image, turn, (2, 3))
        turned = turned.flip(2) if flip else turned
        expected[code_of[tuple(turned.flatten().tolist())]] += (1 / 2 if turn == 0 else 1 / 6) / 2
    assert len(code_of) == 8
    sampler = make(sizes=[2] * 50, pairs=50, augment="tfeat", draws=False)
    counts = np.sum([np.bincount(sampler.plan(step).dihedral, minlength=8) for step in range(120)], 0)
    assert chi_squared(counts, expected) < 24.3  # 7 degrees of freedom, p = 0.001
