"""Class-balanced batches: their classes and items, groups of near classes, and groups by a learned distribution."""

import json

import numpy as np
import pytest

from hardmine.errors import InputError, StoreError
from hardmine.mining.entries import Entries
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.support import Support
from hardmine.mining.samplers import samplers
from hardmine.options import check


def make(name, sizes, seed=0, **options):
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.random.default_rng(0).permutation(offsets[-1])  # rows in no order
    kind = samplers.get(name)
    return kind(Entries(rows, np.zeros(len(rows), np.int16), offsets), check(kind.Options, options, name), seed=seed)


def label_of(sampler, row):
    entry = int(np.flatnonzero(sampler.entries.row == row)[0])
    return int(np.searchsorted(sampler.entries.offsets, entry, side="right")) - 1


@pytest.mark.parametrize("draw", ["distinct", "pads", "pass"])
def test_a_batch_has_so_many_items_of_each_class(draw):
    sampler = make("class-balanced", [5, 4, 0, 9, 3, 4, 6], classes=4, per_class=4, draw=draw)
    assert sampler.classes.tolist() == [0, 1, 3, 5, 6]
    assert sampler.skipped_classes == 1
    for step in range(20):
        plan = sampler.plan(step)
        assert [label_of(sampler, row) for row in plan.rows] == plan.labels.tolist()
        groups = plan.labels.reshape(4, 4)
        assert (groups == groups[:, :1]).all()
        assert all(len(set(rows)) == 4 for rows in plan.rows.reshape(4, 4).tolist())
        chosen = groups[:, 0].tolist()
        if draw == "pads":
            assert all(c not in chosen[max(0, i - 2) : i] for i, c in enumerate(chosen))
        else:
            assert len(set(chosen)) == 4
        assert plan == sampler.plan(step)
    assert make("class-balanced", [5] * 6, seed=1, classes=4, per_class=4).plan(0) != sampler.plan(0)


def test_a_pass_takes_every_class_once_before_one_comes_again():
    sampler = make("class-balanced", [4] * 11, classes=3, per_class=2, draw="pass")
    for first in range(0, 12, 3):
        seen = np.concatenate([sampler.plan(step).labels[::2] for step in range(first, first + 3)])
        assert len(set(seen.tolist())) == 9
    assert sampler.steps_per_pass == 3
    assert sampler.scalars(2) == {"coverage": 6 / 11, "pass_coverage": 6 / 11}
    assert sampler.scalars(3) == {"coverage": 9 / 11, "pass_coverage": 9 / 11}
    assert sampler.scalars(12) == {"coverage": 1.0, "pass_coverage": 9 / 11}  # two are left over in every pass


def test_small_classes_are_dropped_or_their_items_repeated():
    with pytest.raises(InputError, match="needs 3 classes with 4 items or more, but this split has 1"):
        make("class-balanced", [2, 3, 9], classes=3, per_class=4)
    sampler = make("class-balanced", [2, 3, 9], classes=3, per_class=4, small="repeat")
    for step in range(5):
        plan = sampler.plan(step)
        for label in range(3):
            rows, counts = np.unique(plan.rows[plan.labels == label], return_counts=True)
            assert len(rows) == min(4, [2, 3, 9][label])
            assert counts.max() - counts.min() <= 1


def test_items_are_drawn_evenly():
    sampler = make("class-balanced", [6] * 4, classes=4, per_class=2)
    rows = np.concatenate([sampler.plan(step).rows for step in range(600)])
    counts = np.bincount(rows, minlength=24)
    assert ((counts - 200) ** 2 / 200).sum() < 50  # chi-square, 23 degrees of freedom: p = 0.001


class Source:
    """What a sampler asks of a round: unit descriptors' centroids on a circle, and the nearest ones."""

    def __init__(self, classes, k, gap=0.1):
        angle = np.arange(classes) * gap
        self.centroid = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
        apart = np.linalg.norm(self.centroid[:, None] - self.centroid[None], axis=2)
        np.fill_diagonal(apart, np.inf)
        self.near = np.argsort(apart, axis=1, kind="stable")[:, :k]
        self.apart = np.take_along_axis(apart, self.near, 1).astype(np.float32)

    def class_centroid(self):
        return self.centroid

    def nearest_class(self):
        return self.near, self.apart


def test_groups_hold_the_nearest_classes():
    sampler, source = make("class-groups", [3] * 40, classes=8, per_class=2, group=4), Source(40, 30)
    with pytest.raises(StoreError, match="nearest classes"):
        sampler.plan(0)
    sampler.use_nearest(source.near, source, 0)
    for step in range(10):
        chosen = sampler.plan(step).labels[::2]
        assert len(set(chosen.tolist())) == 8
        assert np.abs(chosen[:4] - chosen[0]).max() <= 3  # a class and its three nearest on the line
    alone = make("class-groups", [3] * 40, classes=8, per_class=2, group=4, share=0.0)
    alone.use_nearest(source.near, source, 0)
    spread = np.mean([np.abs(np.diff(np.sort(alone.plan(s).labels[::2]))).mean() for s in range(30)])
    assert spread > 3


@pytest.mark.parametrize(("skip", "candidates"), [(0, None), (3, None), (0, 6), (5, 8), (2, 3)])
def test_a_window_of_ranks_sets_how_near_the_classes_of_a_group_are(skip, candidates):
    source = Source(60, 40)
    options = {"skip": skip, **({} if candidates is None else {"candidates": candidates})}
    sampler = make("class-groups", [3] * 60, classes=4, per_class=2, group=4, **options)
    assert sampler.needs_nearest == skip + (candidates or 3 + 16)
    sampler.use_nearest(source.near[:, : sampler.needs_nearest], source, 0)
    ranks = []
    for step in range(300):
        seed, *others = sampler.plan(step).labels[::2].tolist()
        ranks.append([source.near[seed].tolist().index(one) for one in others])
    assert {rank for line in ranks for rank in line} == set(range(skip, skip + (candidates or 3)))
    assert all(len(set(line)) == 3 for line in ranks)
    counts = np.bincount(np.concatenate(ranks))[skip:]
    if candidates is not None:  # evenly
        assert ((counts - 900 / candidates) ** 2 / (900 / candidates)).sum() < 25
    assert sampler.plan(7) == sampler.plan(7)


def test_a_window_that_is_too_small_and_another_way_to_draw_are_refused():
    with pytest.raises(InputError, match="candidates = 2 are too few for a group of 4 classes"):
        make("class-groups", [3] * 20, classes=4, per_class=2, group=4, candidates=2)
    for name in ("class-groups", "pads-classes"):
        with pytest.raises(InputError, match="groups are drawn in one way"):
            make(name, [3] * 20, classes=4, per_class=2, draw="pass")
    with pytest.raises(InputError, match="'skip'"):
        make("pads-classes", [3] * 20, classes=4, per_class=2, skip=2)


@pytest.mark.parametrize("name", ["class-balanced", "class-groups"])
def test_coverage_is_that_of_the_plans_whatever_was_asked_between_and_survives_a_resume(name):
    def made():
        return make(name, [3] * 33, classes=4, per_class=2, **({} if name == "class-balanced" else {"group": 4}))

    rounds = [Source(33, 30), Source(33, 30, gap=0.19)]  # a part of the circle, and all of it
    assert not np.array_equal(rounds[0].near, rounds[1].near)
    sampler, asked, seen = made(), made(), []
    for step in range(20):
        if name == "class-groups" and step in (0, 11):
            for each in (sampler, asked):
                each.use_nearest(rounds[step > 0].near, rounds[step > 0], step)
        seen.append(set(sampler.plan(step).labels.tolist()))
        if step % 3 == 0:
            asked.scalars(step + 1)
        if step == 13:
            resumed = made()
            resumed.load(json.loads(json.dumps(asked.state(14))))
            if name == "class-groups":
                resumed.use_nearest(rounds[1].near, rounds[1], 11)
    last = set.union(*seen[8:16])  # 33 classes are 8 batches of 4
    expected = {"coverage": len(set.union(*seen)) / 33, "pass_coverage": len(last) / 33}
    assert sampler.scalars(20) == asked.scalars(20) == resumed.scalars(20) == expected


def test_classes_meet_at_the_distances_that_the_distribution_wants():
    source, support = Source(90, 80, gap=0.02), Support()
    sampler = make("pads-classes", [3] * 90, classes=6, per_class=2, group=6, candidates=80)
    sampler.use_nearest(source.near, source, 0)
    with pytest.raises(StoreError, match="distribution"):
        sampler.plan(0)
    edges = support.edges()
    for wanted in (3, 8, 12):
        weights = np.full(support.bins, 1e-20)
        weights[wanted] = 1.0
        sampler._known.clear()
        sampler.use(Distribution(support, tuple(weights)), 0)
        found = []
        for step in range(40):
            chosen = sampler.plan(step).labels[::2]
            found += np.linalg.norm(source.centroid[chosen[1:2]] - source.centroid[chosen[0]], axis=1).tolist()
        assert np.mean([edges[wanted] <= d <= edges[wanted + 1] for d in found]) > 0.9


def test_a_new_distribution_counts_after_the_lag_and_survives_a_resume():
    support = Support()
    first, second = (Distribution.starting(support, name) for name in ("uniform_low", "normal_avg"))
    sampler = make("pads-classes", [3] * 30, classes=6, per_class=2, group=6)
    assert sampler.lag == 16
    sampler.use(first, 0)
    sampler.use(second, 31)
    assert sampler.distribution(0) == first
    assert sampler.distribution(46) == first
    assert sampler.distribution(47) == second
    other = make("pads-classes", [3] * 30, classes=6, per_class=2, group=6)
    other.load(sampler.state(40))
    assert [other.distribution(s) == sampler.distribution(s) for s in range(60)] == [True] * 60
    for step in range(100, 200, 10):
        sampler.use(first, step)
    assert len(sampler._known) < 8  # what no plan needs any more is forgotten
