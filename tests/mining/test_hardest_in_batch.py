"""Hardest-in-batch negatives against loops over all pairs of pairs."""

import itertools

import pytest
import torch

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.miners import Batch, Tuples, miners
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.options import check


def slow(x, labels, negatives, swap, near_duplicate, not_negative):
    """(anchor, positive, negative, item) by trying everything, in the documented order of preference."""
    n = len(x) // 2
    kinds = {"cross": ["ap", "pa"], "within": ["aa", "pp"], "all": ["ap", "pa", "aa", "pp"]}[negatives]
    found = []
    for i in range(n):
        row, best = {"a": i, "p": n + i}, None
        for kind, j in itertools.product(kinds, range(n)):
            if kind[0] == "p" and not swap:
                continue
            if labels[i] == labels[j] or (not_negative is not None and not_negative[i, j]):
                continue
            anchor, negative = row[kind[0]], {"a": j, "p": n + j}[kind[1]]
            distance = float((x[anchor].double() - x[negative].double()).norm())
            if distance >= near_duplicate and (best is None or distance < best[0]):
                best = (distance, anchor, row["p" if kind[0] == "a" else "a"], negative, i)
        if best is not None:
            found.append(best[1:])
    return found


def as_list(tuples):
    return list(zip(*(t.tolist() for t in (tuples.anchor, tuples.positive, tuples.negative, tuples.item))))


@pytest.mark.parametrize("negatives", ["cross", "within", "all"])
@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.parametrize("near_duplicate", [0.0, 0.9])
@pytest.mark.parametrize("overlap", [False, True])
def test_equals_trying_everything(negatives, swap, near_duplicate, overlap):
    generator = torch.Generator().manual_seed(3)
    for scale in (1.0, 7.0):  # descriptors need not be unit
        x = torch.randn(22, 5, generator=generator)
        x = scale * x / x.norm(dim=1, keepdim=True) * (1 if scale == 1 else torch.rand(22, 1, generator=generator))
        labels = torch.randint(0, 7, (11,), generator=generator).repeat(2)
        not_negative = torch.rand(11, 11, generator=generator) < 0.4 if overlap else None
        miner = HardestInBatch(negatives=negatives, swap=swap, near_duplicate=near_duplicate)
        tuples = miner(Batch.of_pairs(x, labels, not_negative))
        expected = slow(x, labels, negatives, swap, near_duplicate, not_negative)
        assert as_list(tuples) == expected
        assert tuples.skipped == 11 - len(expected)
        assert all(t.dtype == torch.int64 for t in (*tuples.triplets, tuples.item))


def test_ties_go_to_the_lowest_pair_and_the_first_kind():
    x = torch.eye(4).repeat(2, 1)  # all other classes at the same distance, and a_i = p_i
    tuples = HardestInBatch(negatives="all")(Batch.of_pairs(x, torch.arange(4).repeat(2)))
    assert as_list(tuples) == [(0, 4, 5, 0), (1, 5, 4, 1), (2, 6, 4, 2), (3, 7, 4, 3)]


def test_a_pair_without_candidate_is_skipped_and_counted():
    x, labels = torch.randn(6, 4), torch.tensor([0, 1, 2]).repeat(2)
    overlap = torch.zeros(3, 3, dtype=torch.bool)
    overlap[1] = True
    tuples = HardestInBatch()(Batch.of_pairs(x, labels, overlap))
    assert tuples.item.tolist() == [0, 2]
    assert tuples.skipped == 1
    nothing = HardestInBatch()(Batch.of_pairs(x, torch.zeros(6, dtype=torch.int64)))
    assert (len(nothing), nothing.skipped) == (0, 3)
    empty = HardestInBatch()(Batch.of_pairs(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)))
    assert (len(empty), empty.skipped) == (0, 0)


def test_near_duplicates_are_left_out_only_when_asked():
    x = torch.nn.functional.normalize(torch.randn(8, 16, generator=torch.Generator().manual_seed(0)))
    x[5] = x[0]  # the positive of pair 1 is the anchor of pair 0: one spot under two labels
    labels = torch.arange(4).repeat(2)
    assert HardestInBatch()(Batch.of_pairs(x, labels)).negative[0] == 5
    assert HardestInBatch(near_duplicate=0.008)(Batch.of_pairs(x, labels)).negative[0] != 5


def test_needs_no_gradient_and_leaves_the_descriptors_alone():
    x = torch.randn(8, 4, requires_grad=True)
    before = x.detach().clone()
    tuples = HardestInBatch()(Batch.of_pairs(x, torch.arange(4).repeat(2)))
    assert not any(t.requires_grad for t in tuples.triplets)
    assert torch.equal(x.detach(), before)


def test_half_precision_and_autocast_choose_in_float32():
    x = torch.nn.functional.normalize(torch.randn(64, 128, generator=torch.Generator().manual_seed(1)))
    labels = torch.arange(32).repeat(2)
    expected = as_list(HardestInBatch(negatives="all")(Batch.of_pairs(x, labels)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert as_list(HardestInBatch(negatives="all")(Batch.of_pairs(x, labels))) == expected
    half = x.half()
    assert as_list(HardestInBatch()(Batch.of_pairs(half, labels))) == as_list(
        HardestInBatch()(Batch.of_pairs(half.float(), labels))
    )


def test_a_nan_descriptor_is_not_hidden():
    x = torch.randn(8, 4)
    x[6] = torch.nan
    tuples = HardestInBatch(negatives="within")(Batch.of_pairs(x, torch.arange(4).repeat(2)))
    assert tuples.skipped == 0
    assert x[tuples.negative].isnan().any()


@pytest.mark.parametrize(
    ("rows", "labels", "not_negative", "message"),
    [
        (5, [0, 1, 0, 1, 2], None, "n anchors, then their n positives"),
        (4, [0, 1], None, "labels have shape"),
        (4, [0, 1, 0, 2], None, "pair 1 joins labels 1 and 2"),
        (4, [0, 1, 0, 1], torch.zeros(4, 4, dtype=torch.bool), "not_negative is torch.bool"),
        (4, [0, 1, 0, 1], torch.zeros(2, 2), "not_negative is torch.float32"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(rows, labels, not_negative, message):
    with pytest.raises(InputError, match=message):
        HardestInBatch()(Batch.of_pairs(torch.randn(rows, 3), torch.tensor(labels), not_negative))


def test_is_found_by_name_and_its_options_are_closed():
    kind = miners.get("hardest-in-batch")
    assert check(kind, {"negatives": "within"}, "miner") == HardestInBatch(negatives="within")
    with pytest.raises(UnknownNameError, match="Did you mean 'negatives'"):
        check(kind, {"negative": "cross"}, "miner")
    with pytest.raises(InputError, match="near_duplicate"):
        check(kind, {"near_duplicate": -1}, "miner")


def test_foreign_triplets_belong_to_the_pair_of_their_anchor():
    triplets = tuple(torch.tensor(t) for t in ([0, 4, 5], [3, 1, 2], [1, 0, 3]))
    batch = Batch.of_pairs(torch.randn(6, 2), torch.arange(3).repeat(2))
    assert Tuples.from_triplets(triplets, batch).item.tolist() == [0, 1, 2]
    assert Tuples.from_triplets(tuple(t[:1] for t in triplets), batch).skipped == 2
    single = Batch(torch.randn(6, 2), torch.tensor([0, 0, 1, 1, 0, 1]))
    assert Tuples.from_triplets(triplets, single).item.tolist() == [0, 4, 5]
    assert Tuples.from_triplets(triplets, single).skipped == 3
