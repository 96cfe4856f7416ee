"""What every miner on distances keeps to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from miner_world import NAMES, VALID, as_list, batch, seeded
from torch.nn.functional import normalize

from hardmine.errors import UnknownNameError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import miners
from hardmine.options import check


@pytest.mark.parametrize(("name", "options"), VALID)
@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=0, max_size=6), dim=st.integers(2, 5), seed=st.integers(0, 99))
def test_every_triplet_is_valid_whatever_the_class_sizes(name, options, sizes, dim, seed):
    data = batch(sizes, dim, seed, torch.float64 if seed % 2 else torch.float32)
    tuples = miners.get(name)(**options)(data)
    a, p, n = tuples.triplets
    labels = data.labels
    assert (labels[a] == labels[p]).all()
    assert (labels[a] != labels[n]).all()
    assert (a != p).all()
    assert torch.equal(tuples.item, a)
    possible = [r for r, c in enumerate(labels.tolist()) if 1 < sizes[c] < len(labels)]
    assert tuples.skipped == len(labels) - len(possible)
    if name == "random":
        count = sum(sizes[labels[r]] - 1 for r in possible for other in labels.tolist() if other != labels[r])
        assert len(tuples) == min(len(labels), count)
        assert len(set(as_list(tuples))) == len(tuples)
    else:
        assert a.tolist() == possible
    assert all(rows.dtype == torch.int64 for rows in (*tuples.triplets, tuples.item))


@pytest.mark.parametrize(
    ("name", "options"), [*VALID, ("drawn", {}), ("hardest-in-batch", {}), ("hardest-in-batch", {"negatives": "all"})]
)
@settings(max_examples=30, deadline=None)
@given(classes=st.lists(st.integers(0, 4), min_size=1, max_size=9), dim=st.integers(2, 5), seed=st.integers(0, 99))
def test_every_triplet_of_pairs_is_valid_whatever_the_classes(name, options, classes, dim, seed):
    """Classes may repeat among the pairs, and there may be one class only; a drawn negative is of another class."""
    own, n = torch.tensor(classes), len(classes)
    labels = torch.cat([own, own, own + 5])
    x = normalize(torch.randn(3 * n, dim, generator=seeded(seed), dtype=torch.float64))
    tuples = miners.get(name)(**options)(Batch(x, labels, n, generator=seeded(seed)))
    a, p, negative = tuples.triplets
    assert (labels[a] == labels[p]).all()
    assert (labels[a] != labels[negative]).all()
    assert (a != p).all()
    assert tuples.item.tolist() == (a % n).tolist()
    if name != "random":  # where only those without a valid triplet are skipped, and not those that were not drawn
        assert tuples.skipped == n - len(set(tuples.item.tolist()))


def test_these_are_all_the_miners():
    assert {*NAMES, "drawn", "hardest-in-batch"} == set(miners.names())


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_tuples_and_the_global_generator_is_left_alone(name):
    before = torch.get_rng_state()
    draws = [as_list(miners.get(name)()(batch([4] * 8, draws=seed))) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_autocast_and_gradients(name):
    data = batch([3] * 8, dim=32)
    half = Batch(data.descriptors.half().requires_grad_(), data.labels, generator=seeded(5))
    full = Batch(half.descriptors.detach().float(), data.labels, generator=seeded(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = miners.get(name)()(half)
    assert as_list(found) == as_list(miners.get(name)()(full))
    assert not any(rows.requires_grad for rows in found.triplets)


@pytest.mark.parametrize(("name", "options"), VALID)
def test_pairs_are_taken_as_rows_and_overlapping_classes_are_no_negatives(name, options):
    x = normalize(torch.randn(15, 4, generator=seeded()))
    overlap = torch.zeros(5, 5, dtype=torch.bool)
    overlap[0], overlap[1, 2] = True, True
    data = Batch(x, torch.arange(5).repeat(3), 5, overlap, seeded())
    for seed in range(20):
        data.generator.manual_seed(seed)
        tuples = miners.get(name)(**options)(data)
        assert tuples.skipped == 1
        assert 0 not in tuples.item
        for a, p, n, item in as_list(tuples):
            assert item == a % 5 == p % 5
            assert max(a, p, n) < 10
            assert not overlap[item, n % 5]
            assert item != n % 5


@pytest.mark.parametrize("name", NAMES)
def test_a_descriptor_that_is_not_finite_is_not_hidden(name):
    data = batch([2] * 3)
    data.descriptors[1] = torch.nan
    chosen = [miners.get(name)()(Batch(data.descriptors, data.labels, generator=seeded(s))) for s in range(5)]
    assert any(1 in rows for tuples in chosen for rows in tuples.triplets)


@pytest.mark.parametrize("name", NAMES)
def test_options_are_closed(name):
    with pytest.raises(UnknownNameError, match="key in miner"):
        check(miners.get(name), {"marjin": 1}, "miner")
    assert not miners.get(name).needs_drawn
