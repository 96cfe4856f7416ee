"""Losses against loops in Python's floats, their gradients, and pytorch-metric-learning as a peer."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from dynamic_world import ONE_ANCHOR, slow_rows
from loss_world import apply, every_loss, label, some_batch
from torch.nn.functional import normalize

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.options import check
from hardmine.train.losses import losses
from hardmine.train.losses.contrastive import Contrastive
from hardmine.train.losses.hard_triplet import AngularHardTriplet
from hardmine.train.losses.lifted import Lifted
from hardmine.train.losses.n_pair import NPair
from hardmine.train.losses.triplet_margin import TripletMargin

ALL = every_loss()
OVER_TUPLES = {"margin", "triplet"}  # sums over tuples, not means over items: see test_margin_loss.py
every = pytest.mark.parametrize(("name", "loss"), ALL, ids=label)
on_pairs = pytest.mark.parametrize(("name", "loss"), [pair for pair in ALL if not pair[1].needs_tuples], ids=label)
on_tuples = pytest.mark.parametrize(
    ("name", "loss"), [pair for pair in ALL if pair[1].needs_tuples and pair[0] not in OVER_TUPLES], ids=label
)
over_items = pytest.mark.parametrize(("name", "loss"), [pair for pair in ALL if pair[0] not in OVER_TUPLES], ids=label)


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def length(x, y, epsilon=0.0):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) + epsilon)


def hardnet(x, y):
    return length(x, y, 1e-6) + 1e-8


def relu(value):
    return max(0.0, value)


def softmax_of_two(loss, a, p, n):
    own = math.exp(2 - hardnet(a, p))
    return -math.log(own / (own + math.exp(2 - hardnet(a, n)) + 1e-8))


# of one triplet
TRIPLET = {
    "aht": lambda loss, a, p, n: relu(loss.t + math.acos(dot(a, p)) ** 2 - math.acos(dot(a, n)) ** 2),
    "contrastive": lambda loss, a, p, n: (
        relu(length(a, p, 1e-6) - loss.eps_pos) + relu(loss.eps_neg - length(a, n, 1e-6))
    ),
    "hardnet-contrastive": lambda loss, a, p, n: hardnet(a, p) + relu(loss.margin - hardnet(a, n)),
    "hardnet-softmax": softmax_of_two,
    "ht": lambda loss, a, p, n: relu(loss.t + length(a, p) ** 2 - length(a, n) ** 2),
    "triplet-margin": lambda loss, a, p, n: relu(loss.margin + hardnet(a, p) - hardnet(a, n)),
    "triplet-ranking": lambda loss, a, p, n: relu(
        loss.margin + length(a, p, loss.epsilon) - length(a, n, loss.epsilon)
    ),
}


def matching(loss, a, p, negative):
    return [relu(length(x, y, 1e-6) - loss.eps_pos) for x, y in zip(a, p)]


def l2net(loss, a, p, negative):
    """Over the line, and with swap over the column."""
    found = []
    for i in range(len(a)):
        own, total = math.exp(2 - length(a[i], p[i], 1e-6)), 0.0
        for side in (0, 1) if loss.swap else (0,):
            others = [j for j in range(len(a)) if negative(i, j)]
            pairs = [(a[i], p[j]) if side == 0 else (a[j], p[i]) for j in others]
            total -= math.log(own / (own + sum(math.exp(2 - length(*pair, 1e-6)) for pair in pairs) + 1e-8))
        found.append(total if others else 0.0)
    return found


def n_pair(loss, a, p, negative):
    found = []
    for i in range(len(a)):
        terms = [math.exp(dot(a[i], p[j]) - dot(a[i], p[i])) for j in range(len(a)) if negative(i, j)]
        found.append(math.log(1 + sum(terms)) + loss.l2 * (dot(a[i], a[i]) + dot(p[i], p[i])) / 2 if terms else 0.0)
    return found


def n_pair_hinge(loss, a, p, negative):
    n = range(len(a))
    return [sum(relu(dot(a[i], p[j]) + loss.margin - dot(a[j], p[j])) for j in n if negative(i, j)) for i in n]


# of the pairs of a batch
PAIRS = {"contrastive": matching, "l2net": l2net, "n-pair": n_pair, "n-pair-hinge": n_pair_hinge}


def slow_lifted(loss, x, same, negative, items):
    """Song's sum over positive pairs, and what each item has of it."""
    per_item, pairs = [0.0] * items, [(i, j) for i, j in itertools.combinations(range(len(x)), 2) if same(i, j)]
    for i, j in pairs:
        terms = [math.exp(loss.margin - length(x[e], x[k])) for e in (i, j) for k in range(len(x)) if negative(e, k)]
        value = relu(math.log(sum(terms)) + length(x[i], x[j])) ** 2 if terms else 0.0
        for end in (i, j):
            per_item[end % items] += value / 2 * items / (2 * len(pairs))
    return per_item


def slow(name, loss, batch, tuples):
    """The losses of a batch's items."""
    x, n = batch.descriptors.tolist(), batch.pairs
    if tuples is not None:
        per_item = [[] for _ in range(batch.items)]
        for a, p, m, i in zip(*(t.tolist() for t in (*tuples.triplets, tuples.item)), strict=True):
            per_item[i].append(TRIPLET[name](loss, x[a], x[p], x[m]))
        return [sum(values) / len(values) if values else 0.0 for values in per_item]
    labels = batch.labels.tolist()
    mask = None if batch.not_negative is None else batch.not_negative.tolist()

    def negative(i, j):
        return labels[i] != labels[j] and not (mask is not None and mask[i % n][j % n])

    if name in ONE_ANCHOR:
        rows = slow_rows(name, loss, x[: 2 * n], lambda i, j: labels[i] == labels[j], negative, loss.omega)
        return [(rows[i] + rows[n + i]) / 2 for i in range(n)]
    if name == "lifted":
        m = len(x) if n is None else 2 * n
        return slow_lifted(loss, x[:m], lambda i, j: labels[i] == labels[j], negative, batch.items)
    return PAIRS[name](loss, x[:n], x[n : 2 * n], negative)


def test_each_loss_has_a_reference():
    assert {*TRIPLET, *PAIRS, *ONE_ANCHOR, "lifted"} == set(losses.names()) - OVER_TUPLES


@over_items
@pytest.mark.parametrize("overlap", [True, False])
def test_equals_the_loop(name, loss, overlap):
    batch, weight = some_batch(overlap=overlap), torch.rand(9, dtype=torch.float64)
    for negatives in ("cross", "within", "all") if loss.needs_tuples else ("cross",):
        tuples = HardestInBatch(negatives=negatives)(batch) if loss.needs_tuples else None
        per_item = slow(name, loss, batch, tuples)
        output = loss(batch, tuples, weight)
        assert output.per_item.tolist() == pytest.approx(per_item, abs=1e-8)
        assert output.value.item() == pytest.approx(sum(w * v for w, v in zip(weight.tolist(), per_item)) / 9, abs=1e-8)
        unweighted = loss(batch, tuples)
        assert torch.equal(unweighted.per_item, output.per_item)
        assert unweighted.value.item() == pytest.approx(sum(per_item) / 9, abs=1e-8)
        if overlap and getattr(loss, "negatives", "") != "none":
            assert output.per_item[4] == 0  # it has no negative
    assert max(per_item) > 0


@on_pairs
def test_drawn_negatives_are_not_looked_at(name, loss):
    batch = some_batch()
    n = batch.pairs
    without = Batch(batch.descriptors[: 2 * n], batch.labels[: 2 * n], n, batch.not_negative)
    assert torch.equal(loss(batch).per_item, loss(without).per_item)


@on_pairs
def test_no_pair_of_the_same_class_or_overlapping_is_a_negative(name, loss):
    batch = some_batch()
    base, moved = loss(batch).per_item, batch.descriptors.clone()
    moved[8] = moved[17] = moved[0]  # pair 8 overlaps pair 0: it may come as near as it likes
    assert loss(replace(batch, descriptors=moved)).per_item[0] == pytest.approx(base[0].item(), abs=1e-12)


@on_tuples
def test_several_triplets_of_a_pair_are_averaged(name, loss):
    x = some_batch(n=3).descriptors[:6]
    batch = Batch.of_pairs(x, torch.arange(3).repeat(2))
    triplets = tuple(torch.tensor(t) for t in ([0, 0, 3, 1], [3, 3, 0, 4], [1, 2, 5, 0]))
    tuples = Tuples.from_triplets(triplets, batch)
    per_item = slow(name, loss, batch, tuples)
    output = loss(batch, tuples)
    assert output.per_item.tolist() == pytest.approx(per_item, abs=1e-9)
    assert output.value.item() == pytest.approx(sum(per_item) / 3, abs=1e-9)


@every
def test_gradient_is_right(name, loss):
    batch, weight = some_batch(n=5, dim=4), torch.rand(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: apply(loss, replace(batch, descriptors=x), weight).value, batch.descriptors.requires_grad_()
    )


@every
def test_weights_are_constants_and_per_item_carries_no_graph(name, loss):
    batch, weight = some_batch(), torch.ones(9, dtype=torch.float64, requires_grad=True)
    output = apply(loss, replace(batch, descriptors=batch.descriptors.requires_grad_()), weight)
    output.value.backward()
    assert weight.grad is None
    assert not output.per_item.requires_grad


@every
def test_arguments_that_do_not_fit_are_refused(name, loss):
    batch = some_batch()
    with pytest.raises(InputError, match=r"weight has shape \(18,\) for 9 items"):
        apply(loss, batch, torch.ones(18))
    with pytest.raises(InputError, match="give it those of a miner" if loss.needs_tuples else "takes no tuples"):
        loss(batch, None if loss.needs_tuples else HardestInBatch()(batch))
    if not loss.needs_tuples and name not in {"contrastive", "lifted", *ONE_ANCHOR}:
        with pytest.raises(InputError, match="needs a batch of pairs"):
            loss(Batch(batch.descriptors, batch.labels))


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_lifted_takes_single_items_of_classes_of_any_size(margin):
    x = 0.5 * torch.randn(11, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    batch = Batch(x, torch.tensor([0, 1, 0, 2, 0, 1, 3, 2, 2, 0, 4]))
    output = Lifted(margin=margin)(batch)
    assert output.per_item.tolist() == pytest.approx(slow("lifted", Lifted(margin=margin), batch, None), abs=1e-9)
    assert output.per_item[6] == output.per_item[10] == 0  # the only ones of their classes


@pytest.mark.parametrize("angle", [1e-4, 1e-3, 0.5, 3.0, math.pi - 1e-3])
def test_angle_is_exact_in_float32_where_arccos_is_not(angle):
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [math.cos(angle), math.sin(angle)], [1.0, 0.0]])
    tuples = Tuples(*(torch.tensor([row]) for row in (0, 2, 1, 0)))  # the negative is the anchor over again
    batch = Batch.of_pairs(x, torch.arange(2).repeat(2))
    squared = AngularHardTriplet(t=0)(batch, tuples).per_item[0].item()
    assert squared == pytest.approx(angle**2, rel=1e-3 if angle < 0.01 else 1e-6)


@pytest.mark.parametrize("name", losses.names())
def test_options_are_closed(name):
    with pytest.raises(UnknownNameError, match="key in loss"):
        check(losses.get(name), {"marjin": 1}, "loss")
    for option, field in losses.get(name).model_fields.items():
        if field.annotation is float:
            signed = (name, option) == ("margin", "beta") or option in ("tau_p", "tau_n")
            for unfit in (math.inf, math.nan) if signed else (-1, math.inf, math.nan):
                with pytest.raises(InputError, match=option):
                    check(losses.get(name), {option: unfit}, "loss")


def test_a_margin_of_negatives_that_are_not_there_is_refused():
    with pytest.raises(InputError, match="eps_neg is the margin of the negatives"):
        check(Contrastive, {"negatives": "none", "eps_neg": 1.2}, "loss")
    assert not Contrastive(negatives="none").needs_tuples
    assert Contrastive().needs_tuples


def test_only_angles_and_cosines_need_the_unit_sphere():
    assert {name for name in losses.names() if losses.get(name).needs_unit_norm} == {"aht", *ONE_ANCHOR}


def test_n_pair_and_lifted_do_not_overflow_on_long_descriptors():
    batch = some_batch(dtype=torch.float32)
    far = replace(batch, descriptors=(1e3 * batch.descriptors).requires_grad_())
    for loss in (NPair(), Lifted()):
        output = loss(far)
        output.value.backward()
        assert torch.isfinite(output.value)
        assert torch.isfinite(far.descriptors.grad).all()


def test_pytorch_metric_learning_takes_our_tuples_and_we_take_its():
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import BatchHardMiner
    from pytorch_metric_learning.reducers import MeanReducer

    batch = some_batch(n=16, dim=32)
    batch = Batch.of_pairs(batch.descriptors[:32], batch.labels[:32])
    x, labels = batch.descriptors, batch.labels
    theirs = TripletMarginLoss(margin=1, swap=False, reducer=MeanReducer())
    ours = HardestInBatch()(batch)
    a, p, n = ours.triplets
    plain = torch.relu(1 + (x[a] - x[p]).norm(dim=1) - (x[a] - x[n]).norm(dim=1)).mean()
    assert theirs(x, labels, ours.triplets).item() == pytest.approx(plain.item(), abs=1e-9)
    assert TripletMargin()(batch, ours).value.item() == pytest.approx(plain.item(), abs=1e-5)

    labels = torch.arange(16).repeat(2)
    batch = Batch.of_pairs(x, labels)
    foreign = BatchHardMiner()(x, labels)  # one triplet for each of the 2n rows: two for each pair
    value = TripletMargin()(batch, Tuples.from_triplets(foreign, batch)).value
    assert value.item() == pytest.approx(theirs(x, labels, foreign).item(), abs=1e-5)


def test_n_pair_and_lifted_are_those_of_pytorch_metric_learning():
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import LiftedStructureLoss, NPairsLoss

    x = torch.randn(24, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    labels = torch.arange(12).repeat(2)
    pairs = Batch.of_pairs(normalize(x), labels)
    assert NPair()(pairs).value.item() == pytest.approx(NPairsLoss()(pairs.descriptors, labels).item(), abs=1e-9)
    theirs = LiftedStructureLoss(neg_margin=1, pos_margin=0, distance=LpDistance(normalize_embeddings=False))
    for chosen, few in ((labels, Batch.of_pairs(x, labels)), (labels % 5, Batch(x, labels % 5))):
        assert Lifted()(few).value.item() == pytest.approx(theirs(x, chosen).item(), abs=1e-9)
