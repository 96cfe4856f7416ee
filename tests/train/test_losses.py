"""Losses against loops, their gradients, and pytorch-metric-learning as a peer."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.miners import Tuples
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.options import check
from hardmine.train.losses import losses
from hardmine.train.losses.hard_triplet import AngularHardTriplet, HardTriplet
from hardmine.train.losses.triplet_margin import TripletMargin

ALL = [TripletMargin(), TripletMargin(margin=0.3), HardTriplet(), HardTriplet(t=0.5), AngularHardTriplet()]


def batch(n=9, dim=6, seed=0, dtype=torch.float64):
    x = torch.randn(2 * n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[n:] = x[:n] + 0.4 * x[n:]
    labels = torch.arange(n).repeat(2)
    labels[[1, n + 1]] = 0
    return normalize(x).to(dtype), labels


def slow(loss, x, tuples, weight):
    """One triplet after the other, in Python's floats."""

    def distance(i, j):
        squared = sum((a - b) ** 2 for a, b in zip(x[i].tolist(), x[j].tolist()))
        if isinstance(loss, TripletMargin):
            return math.sqrt(squared + 1e-6) + 1e-8
        if isinstance(loss, AngularHardTriplet):
            return math.acos(sum(a * b for a, b in zip(x[i].tolist(), x[j].tolist())))
        return math.sqrt(squared)

    n = len(x) // 2
    power, margin = (1, loss.margin) if isinstance(loss, TripletMargin) else (2, loss.t)
    per_item = [[] for _ in range(n)]
    for a, p, m, i in zip(*(t.tolist() for t in (*tuples.triplets, tuples.item))):
        per_item[i].append(max(0.0, margin + distance(a, p) ** power - distance(a, m) ** power))
    per_item = [sum(values) / len(values) if values else 0.0 for values in per_item]
    return sum(w * v for w, v in zip(weight, per_item)) / n, per_item


@pytest.mark.parametrize("loss", ALL, ids=repr)
@pytest.mark.parametrize("negatives", ["cross", "within", "all"])
def test_equals_the_loop(loss, negatives):
    x, labels = batch()
    overlap = torch.zeros(9, 9, dtype=torch.bool)
    overlap[4] = True  # a skipped pair
    tuples = HardestInBatch(negatives=negatives)(x, labels, not_negative=overlap)
    assert tuples.skipped == 1
    weight = torch.rand(9, dtype=torch.float64)
    value, per_item = slow(loss, x, tuples, weight.tolist())
    output = loss(x, tuples, weight)
    assert output.value.item() == pytest.approx(value, abs=1e-9)
    assert output.per_item.tolist() == pytest.approx(per_item, abs=1e-9)
    assert output.per_item[4] == 0
    unweighted = loss(x, tuples, None)
    assert torch.equal(unweighted.per_item, output.per_item)
    assert unweighted.value.item() == pytest.approx(sum(per_item) / 9, abs=1e-9)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_several_triplets_of_a_pair_are_averaged(loss):
    x, _ = batch(n=3)
    triplets = tuple(torch.tensor(t) for t in ([0, 0, 3, 1], [3, 3, 0, 4], [1, 2, 5, 0]))
    tuples = Tuples.from_triplets(triplets, pairs=3)
    value, per_item = slow(loss, x, tuples, [1.0] * 3)
    output = loss(x, tuples)
    assert output.per_item.tolist() == pytest.approx(per_item, abs=1e-9)
    assert output.value.item() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_gradient_is_right(loss):
    x, labels = batch(n=5, dim=4)
    tuples = HardestInBatch()(x, labels)
    weight = torch.rand(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: loss(x, tuples, weight).value, x.requires_grad_())


def test_weights_are_constants_and_per_item_carries_no_graph():
    x, labels = batch()
    weight = torch.ones(9, dtype=torch.float64, requires_grad=True)
    output = TripletMargin()(x.requires_grad_(), HardestInBatch()(x, labels), weight)
    output.value.backward()
    assert weight.grad is None
    assert not output.per_item.requires_grad


@pytest.mark.parametrize("angle", [1e-4, 1e-3, 0.5, 3.0, math.pi - 1e-3])
def test_angle_is_exact_in_float32_where_arccos_is_not(angle):
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [math.cos(angle), math.sin(angle)], [1.0, 0.0]])
    tuples = Tuples(*(torch.tensor([row]) for row in (0, 2, 1, 0)))  # the negative is the anchor over again
    squared = AngularHardTriplet(t=0)(x, tuples).per_item[0].item()
    assert squared == pytest.approx(angle**2, rel=1e-3 if angle < 0.01 else 1e-6)


@pytest.mark.parametrize(("name", "kind"), [("triplet-margin", TripletMargin), ("ht", HardTriplet)])
def test_found_by_name_with_closed_options(name, kind):
    assert losses.get(name) is kind
    with pytest.raises(UnknownNameError, match="key in loss"):
        check(losses.get(name), {"marjin": 1}, "loss")
    with pytest.raises(InputError, match="greater than or equal to 0"):
        check(losses.get(name), {"margin" if name != "ht" else "t": -1}, "loss")


def test_only_the_angle_needs_the_unit_sphere():
    assert {name: losses.get(name).needs_unit_norm for name in losses.names()} == {
        "aht": True,
        "ht": False,
        "triplet-margin": False,
    }


def test_arguments_that_do_not_fit_are_refused():
    x, labels = batch()
    tuples = HardestInBatch()(x, labels)
    with pytest.raises(InputError, match=r"weight has shape \(18,\) for 9 pairs"):
        TripletMargin()(x, tuples, torch.ones(18))
    with pytest.raises(InputError, match="expected"):
        TripletMargin()(x[:-1], tuples)


def test_pytorch_metric_learning_takes_our_tuples_and_we_take_its():
    pml = pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import BatchHardMiner
    from pytorch_metric_learning.reducers import MeanReducer

    assert pml
    x, labels = batch(n=16, dim=32)
    theirs = TripletMarginLoss(margin=1, swap=False, reducer=MeanReducer())
    ours = HardestInBatch()(x, labels)
    a, p, n = ours.triplets
    plain = torch.relu(1 + (x[a] - x[p]).norm(dim=1) - (x[a] - x[n]).norm(dim=1)).mean()
    assert theirs(x, labels, ours.triplets).item() == pytest.approx(plain.item(), abs=1e-9)
    assert TripletMargin()(x, ours).value.item() == pytest.approx(plain.item(), abs=1e-5)

    foreign = BatchHardMiner()(x, labels)  # one triplet for each of the 2n rows: two for each pair
    value = TripletMargin()(x, Tuples.from_triplets(foreign, pairs=16)).value
    assert value.item() == pytest.approx(theirs(x, labels, foreign).item(), abs=1e-5)
