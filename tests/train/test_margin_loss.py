"""The margin and the triplet loss against loops over the tuples, their gradients, and betas that learn."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from hardmine.errors import InputError, StoreError, UnknownNameError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples, miners
from hardmine.options import check
from hardmine.train.losses import losses
from hardmine.train.losses.learnable import Learnable

Margin, Triplet = losses.get("margin"), losses.get("triplet")


def make(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = normalize(torch.randn(12, 5, generator=generator, dtype=torch.float64)).to(dtype)
    batch = Batch(x, torch.arange(12) // 3, generator=generator)
    return batch, miners.get("random")(triplets=1.5)(batch)  # anchors with several tuples and with none


def slow(loss, batch, tuples, weight, beta):
    """(value, per_item) one tuple after the other, in Python's floats."""
    x, labels = batch.descriptors.tolist(), batch.labels.tolist()
    total, pairs, either, regular, per_item = 0.0, 0, 0, 0.0, [[] for _ in x]
    for a, p, n in zip(*(rows.tolist() for rows in tuples.triplets)):
        if isinstance(loss, Margin):
            b = beta[labels[a]]
            near = max(0.0, math.sqrt(math.dist(x[a], x[p]) ** 2 + 1e-8) - b + loss.margin)
            far = max(0.0, b - math.sqrt(math.dist(x[a], x[n]) ** 2 + 1e-8) + loss.margin)
            value, regular = near + far, regular + b
            pairs, either = pairs + (near > 0) + (far > 0), either + (near > 0 or far > 0)
        else:
            value = max(0.0, math.dist(x[a], x[p]) ** 2 - math.dist(x[a], x[n]) ** 2 + loss.margin)
        total += weight[a] * value
        per_item[a].append(value)
    per_item = [sum(values) / len(values) if values else 0.0 for values in per_item]
    if isinstance(loss, Margin):
        return total / max(1, pairs if loss.divisor == "pairs" else either) + loss.nu * regular, per_item
    return total / (len(tuples) if loss.reduction == "mean" else 1), per_item


@pytest.mark.parametrize(
    "loss",
    [
        Margin(beta=0.9),
        Margin(beta=1.1, divisor="or", margin=0.4),
        Margin(beta=1.0, nu=0.3),
        Margin(beta=1.3, learn_beta=False),
        Triplet(),
        Triplet(margin=0.7, reduction="sum"),
    ],
    ids=repr,
)
def test_equals_the_loop_and_its_gradient_is_right(loss):
    batch, tuples = make()
    weight = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    beta = [getattr(loss, "beta", 0)] * 4
    if isinstance(loss, Margin):
        loss.start(4)
        if loss.learn_beta:
            beta = [0.7, 1.0, 1.3, 0.9]
            loss.load_state_dict({"beta": torch.tensor(beta)})
            beta = loss.state_dict()["beta"].tolist()
    for given in (None, weight):
        value, per_item = slow(loss, batch, tuples, [1.0] * 12 if given is None else given.tolist(), beta)
        output = loss(batch, tuples, given)
        assert output.value.item() == pytest.approx(value, abs=1e-9)
        assert output.per_item.tolist() == pytest.approx(per_item, abs=1e-9)
        assert not output.per_item.requires_grad
    x = batch.descriptors.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(Batch(x, batch.labels), tuples, weight).value, x)


def test_betas_learn_from_their_own_class_alone_and_at_their_own_rate():
    batch, tuples = make()
    loss = Margin(beta=1.2, beta_lr=0.1)
    assert isinstance(loss, Learnable)
    assert loss.parameter_groups() == []
    loss.start(5)
    (group,) = loss.parameter_groups()
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.0)
    network = torch.nn.Parameter(batch.descriptors.clone())
    optimizer = torch.optim.SGD([{"params": [network]}, group], lr=1e-3, weight_decay=0.5)
    optimizer.zero_grad()
    loss(Batch(network, batch.labels), tuples).value.backward()
    optimizer.step()

    # by hand: each active positive pair pulls beta up, each active negative pair pushes it down
    x, labels = batch.descriptors.tolist(), batch.labels.tolist()
    slope, active = [0.0] * 5, 0
    for a, p, n in zip(*(rows.tolist() for rows in tuples.triplets)):
        near, far = math.dist(x[a], x[p]) > 1.2 - 0.2, math.dist(x[a], x[n]) < 1.2 + 0.2
        slope[labels[a]] += far - near
        active += near + far
    assert loss.state_dict()["beta"].tolist() == pytest.approx([1.2 - 0.1 * s / active for s in slope], abs=1e-6)
    assert loss.state_dict()["beta"][4] == torch.tensor(1.2)


def test_betas_are_kept_and_go_back():
    loss, other = Margin(), Margin()
    loss.start(3), other.start(3)
    with torch.no_grad():
        loss.parameter_groups()[0]["params"][0].copy_(torch.tensor([1.0, 2.0, 3.0]))
    held = other.parameter_groups()[0]["params"][0]
    other.load_state_dict(loss.state_dict())
    assert held.tolist() == [1.0, 2.0, 3.0]  # in place, so that the optimiser has the same
    for state in ({"beta": torch.ones(2)}, {}):
        with pytest.raises(StoreError, match="this one for 3"):
            loss.load_state_dict(state)
    constant = Margin(learn_beta=False)
    constant.start(3)
    assert (constant.parameter_groups(), constant.state_dict()) == ([], {})
    constant.load_state_dict({})


def test_what_does_not_fit_is_refused():
    batch, tuples = make()
    with pytest.raises(InputError, match=r"call start\(classes\)"):
        Margin()(batch, tuples)
    loss = Margin()
    loss.start(3)
    with pytest.raises(InputError, match="labels go from 0 to 3, and betas are learned for the classes 0 to 2"):
        loss(batch, tuples)
    for each in (Margin(learn_beta=False), Triplet()):
        with pytest.raises(InputError, match="give it those of a miner"):
            each(batch)
        with pytest.raises(InputError, match=r"weight has shape \(3,\) for 12 items"):
            each(batch, tuples, torch.ones(3))
    with pytest.raises(UnknownNameError, match="Did you mean 'divisor'"):
        check(Margin, {"divisr": "or"}, "loss")


@pytest.mark.parametrize(
    "loss", [Margin(learn_beta=False), Margin(learn_beta=False, nu=0.1), Triplet(), Triplet(reduction="sum")], ids=repr
)
def test_105_without_tuples_the_loss_is_0_with_a_gradient(loss):
    x = torch.eye(4).requires_grad_()
    one_class = Batch(x, torch.zeros(4, dtype=torch.int64), generator=torch.Generator())
    tuples = miners.get("semi-hard")()(one_class)
    output = loss(one_class, tuples)
    output.value.backward()
    assert output.value.item() == 0
    assert x.grad.tolist() == torch.zeros(4, 4).tolist()
    assert output.per_item.tolist() == [0] * 4


@pytest.mark.parametrize("loss", [Margin(learn_beta=False), Triplet()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_100_gradient_is_finite_where_anchor_positive_and_negative_coincide(loss, dtype):
    x = torch.zeros(6, 4, dtype=dtype)
    x[:, 0] = 1
    x[5] = 0
    x.requires_grad_()
    rows = torch.tensor([0, 1, 2])
    output = loss(
        Batch(x, torch.tensor([0, 1, 0, 0, 1, 1])), Tuples(rows, torch.tensor([0, 4, 3]), torch.tensor([0, 1, 5]), rows)
    )
    output.value.backward()
    assert torch.isfinite(x.grad).all()
    assert output.value.dtype == torch.float32


def test_loss_under_autocast_is_that_of_float32():
    batch, tuples = make(dtype=torch.float32)
    loss = Margin(learn_beta=False)
    expected = loss(batch, tuples).value
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(batch, tuples).value, expected)


@pytest.mark.parametrize("divisor", ["pairs", "or"])
def test_pytorch_metric_learning_agrees(divisor):
    pml = pytest.importorskip("pytorch_metric_learning.losses")
    batch, tuples = make()
    theirs = pml.MarginLoss(margin=0.2, nu=0, beta=1.1, triplets_per_anchor="all")
    ours = Margin(margin=0.2, beta=1.1, learn_beta=False, divisor=divisor)(batch, tuples).value.item()
    same = theirs(batch.descriptors, batch.labels, tuples.triplets).item() == pytest.approx(ours, abs=1e-5)
    assert same == (divisor == "pairs")
