"""The sampler that puts near classes into one batch."""

import numpy as np
import pytest

from hardmine.errors import InputError, StoreError
from hardmine.mining.entries import Entries
from hardmine.mining.samplers import samplers
from hardmine.mining.samplers.neighbours import NeighbourOptions
from hardmine.options import check

CLASSES = 60


def make(pairs=20, seed=0, sizes=None, **options):
    sizes = np.full(CLASSES, 3) if sizes is None else sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    entries = Entries(np.arange(offsets[-1]), np.zeros(offsets[-1], np.int16), offsets)
    kind = samplers.get("neighbours")
    return kind(entries, check(NeighbourOptions, options, "sampler"), pairs=pairs, seed=seed)


def blocks(size=6, k=12):
    """Classes 0..5 are near each other, 6..11, and so on: those of the same block first, then nothing."""
    nearest = np.full((CLASSES, k), -1, np.int64)
    for c in range(CLASSES):
        own = [o for o in range(c // size * size, c // size * size + size) if o != c]
        nearest[c, : len(own)] = own
    return nearest


def slow(sampler, step, nearest, group, share):
    """The classes of a batch by a plain loop."""
    rng = np.random.Generator(np.random.Philox(key=[sampler.seed, step]))
    order = sampler.classes[rng.choice(len(sampler.classes), sampler.pairs, replace=False)]
    batch, eligible = [], set(sampler.classes.tolist())
    for c in order:
        if c in batch or len(batch) == sampler.pairs:
            continue
        batch.append(c)
        more = group - 1
        for o in nearest[c]:
            if more > 0 and o in eligible and o not in batch and len(batch) < round(share * sampler.pairs):
                batch.append(o)
                more -= 1
    return batch[: sampler.pairs]


@pytest.mark.parametrize(("group", "share"), [(2, 1.0), (6, 1.0), (6, 0.5), (4, 0.33), (30, 1.0), (5, 0.0)])
def test_batches_equal_a_plain_loop(group, share):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 4, CLASSES)
    nearest = np.argsort(rng.random((CLASSES, CLASSES)), axis=1)[:, :25]
    nearest[rng.random(nearest.shape) < 0.1] = -1
    sampler = make(sizes=sizes, group=group, share=share, pairs=22)
    sampler.use_nearest(nearest, None, 0)
    for step in range(30):
        plan = sampler.plan(step)
        assert plan.label.tolist() == slow(sampler, step, nearest, group, share)
        assert len(np.unique(plan.label)) == 22
        assert (plan.anchor_row != plan.positive_row).all()


def test_near_classes_meet():
    sampler = make(group=5)
    sampler.use_nearest(blocks(), None, 0)
    together = [np.bincount(sampler.plan(step).label // 6, minlength=10).max() for step in range(20)]
    assert min(together) >= 5
    half = make(group=5, share=0.5)
    half.use_nearest(blocks(), None, 0)
    assert make(group=5, share=0.0).needs_nearest > 0
    counts = [np.sort(np.bincount(half.plan(step).label // 6, minlength=10))[-2:] for step in range(20)]
    assert all((c >= 5).all() for c in counts)


def test_without_neighbours_it_draws_as_random_does():
    sampler = make(share=0.0)
    sampler.use_nearest(blocks(), None, 0)
    random = samplers.get("random")(sampler.entries, pairs=20, seed=0)
    assert all(sampler.plan(step) == random.plan(step) for step in range(10))


def test_a_plan_depends_on_seed_and_step_alone():
    first, second = make(seed=3), make(seed=3)
    for each in (first, second):
        each.use_nearest(blocks(), None, 0)
    second.scalars(9)
    ahead = [second.plan(step) for step in (7, 3, 5)]
    assert [first.plan(step) for step in (7, 3, 5)] == ahead
    assert first.plan(3) != first.plan(4)


def test_coverage_counts_the_classes_seen_since_the_mining_whenever_it_is_asked():
    first, second = make(), make()
    for each in (first, second):
        each.use_nearest(blocks(), None, 10)
    seen = set()
    for step in range(10, 16):
        assert first.scalars(step)["coverage"] == pytest.approx(len(seen) / CLASSES)
        seen.update(first.plan(step).label.tolist())
    assert second.scalars(16) == first.scalars(16)
    first.use_nearest(blocks(), None, 16)
    assert first.scalars(16) == {"coverage": 0.0}


def test_it_says_what_it_lacks():
    with pytest.raises(StoreError, match="nearest classes of a mining round"):
        make().plan(0)
    with pytest.raises(InputError, match=r"group: .*greater than or equal to 2"):
        make(group=1)
