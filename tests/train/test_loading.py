"""Plans reach the trainer unchanged, whatever the number of loader workers, and foreign uses fail with a clear word."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hardmine.errors import InputError
from hardmine.mining.class_distances import StoredDistances
from hardmine.mining.derive import class_pair_distances
from hardmine.mining.entries import list_entries
from hardmine.mining.samplers import samplers
from hardmine.pipeline.loading import PatchDataset, loader, paired, whole


def make_sampler(store, name="adasample", lag=16):
    entries = list_entries(store, "train", None)
    sampler = samplers.get(name)(entries, pairs=6, seed=3, augment="dihedral", lag=lag)
    x = np.random.default_rng(0).normal(size=(len(entries), 8)).astype(np.float32)
    sampler.distances = StoredDistances(*class_pair_distances(x, entries.offsets), entries.offsets)
    return sampler


def run(store, workers, lag=16, steps=12):
    """Plans and pixels of two stretches, with the losses fed back as the trainer does."""
    sampler, seen = make_sampler(store, lag=lag), []
    batches = loader(store, sampler, workers, lag - 1)
    losses = np.random.default_rng(1).uniform(0.2, 1, steps)
    for first, stop in ((0, 7), (7, steps)):
        sampler.between(first, stop)
        assert len(batches) == stop - first
        for pixels, plan in batches:
            seen.append((plan, pixels.clone()))
            sampler.record(plan.step, losses[plan.step])
    return seen


def test_plans_and_pixels_are_the_same_with_0_1_and_4_loader_workers(train_store):
    alone = run(train_store, 0)
    assert [plan.step for plan, _ in alone] == list(range(12))
    for plan, pixels in alone:
        assert np.array_equal(pixels.numpy(), train_store.gather(plan.rows))
    for workers in (1, 4):
        for (ours, pixels), (plan, expected) in zip(run(train_store, workers), alone, strict=True):
            assert ours == plan
            assert torch.equal(pixels, expected)


def test_the_shortest_lags_that_allow_workers(train_store):
    alone = [plan for plan, _ in run(train_store, 0, lag=2)]
    assert [plan for plan, _ in run(train_store, 1, lag=2)] == alone
    with pytest.raises(InputError, match="2 loader workers prefetch at least 2 batches, but the feedback lag allows 1"):
        loader(train_store, make_sampler(train_store), 2, 1)


def test_our_sampler_works_with_a_foreign_dataset_in_row_order(train_store):
    sampler = make_sampler(train_store, "random").between(0, 3)
    dataset = TensorDataset(torch.arange(len(train_store)))
    for (rows,), plan in zip(DataLoader(dataset, batch_sampler=sampler), sampler, strict=True):
        assert rows.tolist() == list(plan)


def test_given_as_sampler_it_says_what_to_do(train_store):
    sampler = make_sampler(train_store, "random").between(0, 2)
    with pytest.raises(InputError, match="batch_sampler"):
        next(iter(DataLoader(PatchDataset(train_store), sampler=sampler, collate_fn=whole)))


def test_single_rows_are_patches(train_store):
    dataset = PatchDataset(train_store)
    assert len(dataset) == len(train_store)
    assert np.array_equal(dataset[5].numpy(), train_store.gather(np.array([5]))[0])


class Numbers(torch.utils.data.Dataset):
    """Item i is i and its square; `whole` fetches a batch at once."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if not 0 <= i < self.count:
            raise IndexError(i)
        return torch.tensor(i), {"square": i * i}


class WholeNumbers(Numbers):
    def __getitems__(self, rows):
        return [(torch.tensor(row), {"square": row * row}) for row in rows]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Numbers, WholeNumbers])
def test_plans_come_beside_the_batches_of_any_dataset(train_store, kind, workers):
    more = {"num_workers": workers, "prefetch_factor": 2, "multiprocessing_context": "fork"} if workers else {}
    plain = DataLoader(kind(len(train_store)), batch_sampler=make_sampler(train_store).between(3, 9), **more)
    want = [make_sampler(train_store).plan(step) for step in range(3, 9)]
    seen = list(paired(plain))
    assert [plan for _, plan in seen] == want
    for (numbers, squares), plan in seen:
        assert numbers.tolist() == plan.rows.tolist()
        assert squares["square"].tolist() == (plan.rows**2).tolist()
    for (numbers, _), plan in zip(plain, want):  # the same batches as without
        assert numbers.tolist() == plan.rows.tolist()


def test_paired_keeps_the_loaders_own_collate_function(train_store):
    sampler = make_sampler(train_store).between(0, 2)
    own = DataLoader(
        Numbers(len(train_store)), batch_sampler=sampler, collate_fn=lambda items: [int(i) for i, _ in items]
    )
    assert [batch for batch, _ in paired(own)] == [sampler.plan(step).rows.tolist() for step in range(2)]


def test_what_paired_cannot_pair_is_said(train_store):
    sampler = make_sampler(train_store).between(0, 1)
    with pytest.raises(InputError, match=r"has row \d+, and the dataset 3 items"):
        next(iter(paired(DataLoader(Numbers(3), batch_sampler=sampler))))
    with pytest.raises(InputError, match="a batch plan was expected"):
        next(iter(paired(DataLoader(Numbers(8), batch_size=2))))
    with pytest.raises(InputError, match="made with batch_sampler"):
        paired(DataLoader(Numbers(8), batch_size=None))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield 1

    with pytest.raises(InputError, match="map-style"):
        paired(DataLoader(Stream()))
