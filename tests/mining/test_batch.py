"""What a batch is, what it refuses, and the tuples of its drawn negatives."""

import pytest
import torch

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import miners
from hardmine.mining.miners.drawn import Drawn
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.options import check


def triplets(n=12, dim=3, seed=0):
    x = torch.randn(3 * n, dim, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(n)
    return Batch(x, torch.cat([labels, labels, labels.roll(1)]), n)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.randn(4), torch.arange(4)), r"shape \(4,\); expected \(m, D\)"),
        ((torch.randn(4, 2), torch.arange(3)), r"labels have shape \(3,\) for 4 descriptors"),
        ((torch.randn(5, 2), torch.tensor([0, 1, 0, 1, 2]), 2), "5 descriptors for 2 pairs"),
        ((torch.randn(4, 2), torch.tensor([0, 1, 0, 2]), 2), "pair 1 joins labels 1 and 2"),
        ((torch.randn(4, 2), torch.arange(4), None, torch.zeros(4, 4, dtype=torch.bool)), "this batch has none"),
        ((torch.randn(4, 2), torch.arange(2).repeat(2), 2, torch.zeros(2, 2)), "not_negative is torch.float32"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Batch(*arguments)


def test_its_parts():
    batch = triplets(4)
    x = batch.descriptors
    anchors, positives = batch.parts()
    assert torch.equal(torch.cat([anchors, positives, batch.drawn()]), x)
    assert (batch.items, batch.has_drawn) == (4, True)
    pairs = Batch.of_pairs(x[:8], batch.labels[:8])
    assert (pairs.items, pairs.has_drawn) == (4, False)
    with pytest.raises(InputError, match="needs a drawn negative for each pair"):
        pairs.drawn()
    single = Batch(x, batch.labels)
    assert (single.items, single.has_drawn) == (12, False)
    for part in (single.parts, single.excluded):
        with pytest.raises(InputError, match="needs a batch of pairs"):
            part()
    with pytest.raises(InputError, match="5 descriptors are no pairs"):
        Batch.of_pairs(x[:5], batch.labels[:5])


def test_who_is_a_negative_of_whom():
    labels = [3, 5, 3, 7]
    overlap = torch.zeros(4, 4, dtype=torch.bool)
    overlap[1, 3] = overlap[3, 1] = True
    batch = Batch(torch.randn(12, 2), torch.tensor([*labels, *labels, 5, 7, 7, 3]), 4, overlap)
    excluded = batch.excluded()
    x, positive, negative = batch.rows()
    assert torch.equal(x, batch.descriptors[:8])
    for i in range(4):
        for j in range(4):
            same, meets = labels[i] == labels[j], {i, j} == {1, 3}
            assert excluded[i, j] == (same or meets)
            assert positive[i::4, j::4].tolist() == [[same] * 2] * 2
            assert negative[i::4, j::4].tolist() == [[not same and not meets] * 2] * 2
    x, positive, negative = Batch(x, batch.labels[:8]).rows()
    assert torch.equal(negative, ~positive)
    assert positive[0].tolist() == [label == 3 for label in (labels * 2)]


@pytest.mark.parametrize("swap", [False, True])
def test_drawn_takes_each_pair_with_its_negative(swap):
    batch = triplets(30)
    tuples = Drawn(swap=swap)(batch)
    x, swapped = batch.descriptors.double(), 0
    for i, (a, p, n, item) in enumerate(zip(*(t.tolist() for t in (*tuples.triplets, tuples.item)))):
        assert (n, item) == (60 + i, i)
        assert {a, p} == {i, 30 + i}
        distances = [float((x[row] - x[n]).norm()) for row in (i, 30 + i)]
        assert float((x[a] - x[n]).norm()) == (min(distances) if swap else distances[0])
        swapped += a != i
    assert (swapped > 5) == swap
    assert (tuples.skipped, len(tuples)) == (0, 30)


def test_drawn_leaves_a_tie_as_it_is_and_hides_no_nan():
    x = torch.tensor([[1.0, 0], [0, 1], [1.0, 0], [0, 1], [0, 0], [torch.nan, 0]])
    tuples = Drawn(swap=True)(Batch(x, torch.tensor([0, 1, 0, 1, 1, 0]), 2))
    assert tuples.anchor.tolist() == [0, 1]
    assert x[tuples.negative].isnan().any()


def test_drawn_needs_drawn_negatives_and_says_so():
    with pytest.raises(InputError, match="needs a drawn negative"):
        Drawn()(Batch.of_pairs(torch.randn(4, 2), torch.arange(2).repeat(2)))
    assert [name for name in miners.names() if miners.get(name).needs_drawn] == ["drawn"]
    with pytest.raises(UnknownNameError, match=r"'swop'.*Did you mean 'swap'"):
        check(Drawn, {"swop": True}, "miner")


def test_drawn_negatives_do_not_change_what_is_mined():
    batch = triplets()
    pairs = Batch.of_pairs(batch.descriptors[:24], batch.labels[:24])
    with_drawn, without = (HardestInBatch(negatives="all")(each) for each in (batch, pairs))
    assert all(torch.equal(one, other) for one, other in zip(with_drawn.triplets, without.triplets))
