"""Samplers against slow references, and the promises every sampler makes."""

import numpy as np
import pytest

from hardmine.errors import InputError, StoreError, UnknownNameError
from hardmine.mining.class_distances import OnlineDistances, StoredDistances
from hardmine.mining.entries import Entries
from hardmine.mining.samplers import samplers
from hardmine.mining.samplers.adasample import AdaSampleOptions, inverse_distance_weights, probabilities
from hardmine.options import check

SIZES = [3, 1, 2, 5, 4, 0, 2, 6, 3]


def make_entries(sizes=SIZES):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    n = offsets[-1]
    return Entries(np.arange(100, 100 + n), (np.arange(n) % 3 == 2).astype(np.int16), offsets)


@pytest.fixture
def descriptors():
    x = np.random.default_rng(0).normal(size=(sum(SIZES), 8)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def condensed(entries, x):
    """pair_distance and pair_offsets by plain loops."""
    values, offsets = [], [0]
    for start, stop in zip(entries.offsets, entries.offsets[1:]):
        for i in range(start, stop):
            for j in range(i + 1, stop):
                values.append(np.linalg.norm(x[i] - x[j]))
        offsets.append(len(values))
    return np.array(values, np.float32), np.array(offsets)


def stored(entries, x):
    return StoredDistances(*condensed(entries, x), entries.offsets)


def make(name, entries, x=None, pairs=5, **settings):
    options = {k: v for k, v in settings.items() if k in AdaSampleOptions.model_fields and name == "adasample"}
    kind = samplers.get(name)
    rest = {k: v for k, v in settings.items() if k not in options}
    sampler = kind(entries, check(kind.Options, options, name), pairs=pairs, **rest)
    if sampler.needs_distances:
        sampler.distances = stored(entries, x)
    return sampler


def test_distances_from_an_anchor_equal_plain_loops(descriptors):
    entries = make_entries()
    classes, slots = np.array([0, 3, 7, 4]), np.array([2, 0, 5, 1])
    online = OnlineDistances(entries, lambda rows, views: descriptors[rows - 100])
    for source in (stored(entries, descriptors), online):
        found = source.from_anchor(classes, slots)
        assert found.shape == (4, 6)
        for r, (c, s) in enumerate(zip(classes, slots)):
            x = descriptors[entries.offsets[c] : entries.offsets[c + 1]]
            for j in range(6):
                if j == s or j >= len(x):
                    assert np.isnan(found[r, j])
                else:
                    assert found[r, j] == pytest.approx(np.linalg.norm(x[j] - x[s]), abs=1e-6)


@pytest.mark.parametrize("name", ["random", "hardpos", "adasample"])
def test_every_plan_holds_distinct_classes_and_distinct_entries_of_each(name, descriptors):
    entries = make_entries()
    sampler = make(name, entries, descriptors)
    assert sampler.skipped_classes == 1
    seen = set()
    for step in range(40):
        if step >= 16:
            sampler.record(step - 16, 0.5)
        plan = sampler.plan(step)
        assert len(np.unique(plan.label)) == 5 == len(plan) // 2
        for c, a, p, va, vp in zip(
            plan.label, plan.anchor_row, plan.positive_row, plan.anchor_view, plan.positive_view
        ):
            own = slice(entries.offsets[c], entries.offsets[c + 1])
            assert (a, va) in list(zip(entries.row[own], entries.view[own]))
            assert (p, vp) in list(zip(entries.row[own], entries.view[own]))
            assert (a, va) != (p, vp)
        assert plan.weight.mean() == pytest.approx(1, abs=1e-5)
        assert list(plan) == [*plan.anchor_row, *plan.positive_row]
        assert plan[0] == plan.anchor_row[0]
        seen.update(plan.label.tolist())
    assert seen == {c for c, k in enumerate(SIZES) if k >= 2}


def test_a_plan_depends_on_seed_and_step_alone(descriptors):
    entries = make_entries()
    first, second = (make("random", entries, seed=3, augment="dihedral") for _ in range(2))
    ahead = [second.plan(step) for step in (7, 3, 5)]
    assert [first.plan(step) for step in (7, 3, 5)] == ahead
    assert first.plan(3) != first.plan(5)
    assert make("random", entries, seed=4).plan(3) != make("random", entries, seed=3).plan(3)


def test_iterating_delivers_the_steps_asked_for():
    sampler = make("random", make_entries()).between(4, 9)
    assert len(sampler) == 5
    assert [plan.step for plan in sampler] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(("augment", "codes"), [("none", {0}), ("fliprot", set(range(4))), ("dihedral", set(range(8)))])
def test_augmentation_draws_its_own_symmetries(augment, codes):
    sampler = make("random", make_entries(), augment=augment)
    assert {int(c) for step in range(40) for c in sampler.plan(step).dihedral} == codes


def test_random_positives_are_uniform_over_the_other_entries():
    entries = make_entries([4, 4])
    sampler = make("random", entries, pairs=2)
    counts = np.zeros((4, 4))
    for step in range(3000):
        plan = sampler.plan(step)
        counts[(plan.anchor_row - 100) % 4, (plan.positive_row - 100) % 4] += 1
    assert (counts.diagonal() == 0).all()
    expected = 6000 / 12
    off = counts[~np.eye(4, dtype=bool)]
    assert ((off - expected) ** 2 / expected).sum() < 31.3  # chi-squared, 11 degrees of freedom, p = 0.001


def test_hardpos_takes_the_farthest(descriptors):
    entries = make_entries()
    plan = make("hardpos", entries, descriptors).plan(0)
    for c, a, p in zip(plan.label, plan.anchor_row, plan.positive_row):
        own = range(entries.offsets[c], entries.offsets[c + 1])
        far = max(own, key=lambda e: np.linalg.norm(descriptors[e] - descriptors[a - 100]))
        assert p == far + 100


def test_adasample_at_lambda_0_draws_like_hardnet_with_weights_1(descriptors):
    entries = make_entries([4, 4])
    x = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
    sampler = make("adasample", entries, x, pairs=2, lam=0.0)
    counts = np.zeros((4, 4))
    for step in range(3000):
        if step >= 16:
            sampler.record(step - 16, 0.7)
        plan = sampler.plan(step)
        assert (plan.weight == 1).all()
        counts[(plan.anchor_row - 100) % 4, (plan.positive_row - 100) % 4] += 1
    off = counts[~np.eye(4, dtype=bool)]
    assert ((off - 500) ** 2 / 500).sum() < 31.3


def test_adasample_at_infinite_lambda_is_hardpos(descriptors):
    entries = make_entries()
    assert make("adasample", entries, descriptors, lam=np.inf).plan(5) == make("hardpos", entries, descriptors).plan(5)


def test_adasample_draws_in_proportion_to_its_probabilities(descriptors):
    entries = make_entries([5])
    x = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    sampler = make("adasample", entries, x, pairs=1, exponent=2.5)
    counts = np.zeros((5, 5))
    for step in range(20000):
        plan = sampler.plan(step)
        counts[plan.anchor_row[0] - 100, plan.positive_row[0] - 100] += 1
    for anchor in range(5):
        d = np.array([np.linalg.norm(x[anchor] - x[j]) for j in range(5)])
        p = d**2.5 / sum(d**2.5)
        expected = counts[anchor].sum() * p
        others = np.arange(5) != anchor
        chi = ((counts[anchor][others] - expected[others]) ** 2 / expected[others]).sum()
        assert chi < 16.3  # 3 degrees of freedom, p = 0.001


def test_probabilities_stay_finite_at_the_ends():
    d = np.array([[np.nan, 0.0, 0.0, 0.0], [np.nan, 1e-9, 0.5, 1.9], [np.nan, 0.7, np.nan, np.nan]])
    p = probabilities(d, 1e4)
    assert np.isfinite(p).all()
    assert p[0].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert p[1].tolist() == pytest.approx([0, 0, 0, 1])
    assert p[2].tolist() == [0, 1, 0, 0]


def test_weights_are_inverse_distances_with_mean_1_and_a_cap():
    d = np.array([0.2, 0.4, 0.8, 1.0])
    w = inverse_distance_weights(d, np.inf)
    assert w.mean() == pytest.approx(1)
    assert (w * d).std() == pytest.approx(0, abs=1e-12)
    capped = inverse_distance_weights(np.array([0.0, 0.5, 0.5, 0.5, 1.0]), 10.0)
    assert capped.max() / np.median(capped) == pytest.approx(10)
    assert inverse_distance_weights(np.array([0.0, 0.5, 0.5]), np.inf)[1] < 1e-5  # one pair silences the rest


def test_the_angle_is_an_option(descriptors):
    entries = make_entries([3])
    x = np.array([[1, 0], [np.cos(0.3), np.sin(0.3)], [np.cos(2.5), np.sin(2.5)]], np.float32)
    sampler = make("adasample", entries, x, pairs=1, exponent=1.0, distance="angle")
    assert sampler.distances is not None
    draws = [sampler.plan(step) for step in range(4000)]
    from_first = [plan.positive_row[0] - 100 for plan in draws if plan.anchor_row[0] == 100]
    assert np.mean(np.array(from_first) == 2) == pytest.approx(2.5 / 2.8, abs=0.03)


def test_the_exponent_uses_losses_a_fixed_number_of_steps_late(descriptors):
    entries = make_entries()
    losses = np.random.default_rng(0).uniform(0.1, 1, 30)
    sampler = make("adasample", entries, descriptors, lag=3, lam=10.0)
    for step in range(30):
        average = 1.0
        for s in range(max(0, step - 3 + 1)):
            average = 0.9 * average + 0.1 * losses[s]
        sampler.plan(step)
        assert sampler.exponent(step) == pytest.approx(10 / average)
        sampler.record(step, losses[step])


def test_prefetching_deeper_than_the_lag_is_an_error(descriptors):
    sampler = make("adasample", make_entries(), descriptors, lag=2)
    sampler.plan(0)
    sampler.plan(1)
    with pytest.raises(StoreError, match="prefetch no deeper than the lag"):
        sampler.plan(2)


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_resumed_sampler_plans_the_same(ahead, descriptors):
    entries = make_entries()
    losses = np.random.default_rng(0).uniform(0.1, 1, 200)
    straight = make("adasample", entries, descriptors, lag=4)
    plans = {}
    for step in range(200):
        plans[step] = straight.plan(step)
        straight.record(step, losses[step])
    first = make("adasample", entries, descriptors, lag=4)
    for step in range(101):
        first.plan(step + ahead)  # as a prefetching loader asks
        first.record(step, losses[step])
    second = make("adasample", entries, descriptors, lag=4)
    second.load(first.state(101))
    for step in range(101, 200):
        assert second.plan(step) == plans[step]
        second.record(step, losses[step])


def test_too_few_classes_is_an_error_that_counts_them():
    with pytest.raises(InputError, match=r"needs 8 classes.*this split has 7 \(1 have one patch\)"):
        make("random", make_entries(), pairs=8)


def test_a_sampler_without_its_distances_says_so():
    kind = samplers.get("hardpos")
    with pytest.raises(StoreError, match="needs the distances of a mining round"):
        kind(make_entries(), pairs=3).plan(0)


def test_options_are_closed_and_exclusive():
    with pytest.raises(UnknownNameError, match="'lambda'"):
        check(AdaSampleOptions, {"lambda": 3}, "sampler")
    with pytest.raises(InputError, match="not both"):
        check(AdaSampleOptions, {"lam": 3, "exponent": 2}, "sampler")
    for idle in ("momentum", "initial_loss"):
        with pytest.raises(InputError, match=f"^sampler: {idle} is of L_avg, which a fixed exponent does not look at"):
            check(AdaSampleOptions, {"exponent": 2, idle: 0.5}, "sampler")
    with pytest.raises(InputError, match="max_weight caps a weight"):
        check(AdaSampleOptions, {"weights": "none", "max_weight": 5}, "sampler")
    assert check(AdaSampleOptions, {"exponent": 2, "max_weight": 5}, "sampler").max_weight == 5


def test_golden_g2_the_probabilities_of_the_specs():
    found = probabilities(np.array([[0.2, 0.4, 0.5]]), 10 / 0.8)[0]
    assert found == pytest.approx([9.996e-6, 0.0579049, 0.9420851], rel=1e-4)
