"""Sampling and batches: public bug reports as tests. The numbers are those of the bug-case log."""

import pickle

import numpy as np
import pytest
from torch.utils.data import DataLoader

from hardmine.errors import InputError
from hardmine.mining.entries import Entries
from hardmine.mining.samplers import samplers
from hardmine.options import check
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.loading import PatchDataset, whole
from hardmine.store.patches import PatchStore


def entries(sizes):
    """Items of classes of these sizes, numbered through."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Entries(np.arange(offsets[-1]), np.zeros(offsets[-1], np.int16), offsets)


def class_balanced(sizes, **options):
    kind = samplers.get("class-balanced")
    return kind(entries(sizes), check(kind.Options, options, "the sampler"), seed=1)


@pytest.fixture
def store(made_up, tmp_path):
    made_up(raw_label=np.arange(40) // 4)
    ingest("made-up", tmp_path, tmp_path / "store")
    return PatchStore.open(tmp_path / "store")


def test_93_a_batch_sampler_given_as_sampler_says_so(store):
    sampler = samplers.get("class-balanced")
    make = sampler(entries([4] * 10), sampler.Options(classes=4, per_class=2)).between(0, 3)
    batches = list(DataLoader(PatchDataset(store), batch_sampler=make, collate_fn=whole))
    assert [len(pixels) for pixels, _ in batches] == [8, 8, 8]
    with pytest.raises(InputError, match=r"as batch_sampler=\.\.\., not as sampler=\.\.\."):
        next(iter(DataLoader(PatchDataset(store), sampler=make, collate_fn=whole)))


@pytest.mark.parametrize("draw", ["distinct", "pads", "pass"])
def test_94_coverage_of_a_pass_is_reported_and_can_be_guaranteed(draw):
    """100 classes of 50: four batches are as many classes, but only a pass has them all."""
    made = class_balanced([50] * 100, classes=25, per_class=5, draw=draw, small="repeat")
    assert made.steps_per_pass == 4
    for last in range(4, 41, 4):
        seen = np.unique(np.concatenate([made.plan(step).labels for step in range(last - 4, last)]))
        assert made.scalars(last)["pass_coverage"] == len(seen) / 100
        assert (len(seen) == 100) == (draw == "pass")


def test_95_all_batches_are_full_and_a_pass_says_how_many_it_has():
    """458 items in classes of uneven sizes: no batch is short, and the classes left over come in another pass."""
    sizes = np.random.default_rng(0).multinomial(458 - 60, np.full(60, 1 / 60)) + 1
    made = class_balanced(sizes, classes=25, per_class=5, draw="pass", small="repeat")
    assert made.steps_per_pass == 2
    plans = list(made.between(0, 6 * made.steps_per_pass))
    assert len(plans) == len(made) == 12
    assert {len(plan) for plan in plans} == {125}
    seen = {label for plan in plans for label in plan.labels.tolist()}
    assert seen == set(range(60))
    assert made.scalars(12) == {"coverage": 1.0, "pass_coverage": 50 / 60}


@pytest.mark.parametrize("size", [2, 4])
def test_97_processes_draw_one_plan_and_take_parts_of_it_that_do_not_overlap(size):
    own = [class_balanced([4] * 20, classes=4, per_class=4) for _ in range(size)]
    for step in range(5):
        plans = [sampler.plan(step) for sampler in own]
        assert all(plan == plans[0] for plan in plans)
        parts = [plan.rows[plan.slots(rank, size)] for rank, plan in enumerate(plans)]
        assert sorted(np.concatenate(parts)) == sorted(plans[0].rows)
        assert {len(part) for part in parts} == {16 // size}


def test_98_what_travels_to_a_loader_worker_does_not_grow_with_the_data(made_up, tmp_path):
    sizes = []
    for items in (50, 2000):
        made_up(raw_label=np.arange(items) // 5)
        ingest("made-up", tmp_path, tmp_path / f"store{items}")
        opened = PatchStore.open(tmp_path / f"store{items}")
        assert isinstance(opened.label, np.ndarray)  # columns that were read stay behind
        sizes.append(len(pickle.dumps(PatchDataset(opened))))
    assert sizes[1] < sizes[0] + 100
