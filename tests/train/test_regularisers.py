"""Regularisers against loops in Python's floats, their gradients, and what they promise for random directions."""

import math
from dataclasses import replace

import pytest
import torch
from loss_world import every_regulariser, label, some_batch
from torch.nn.functional import normalize

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.batch import Batch
from hardmine.options import check
from hardmine.train.regularisers import regularisers
from hardmine.train.regularisers.gor import GlobalOrthogonal

every = pytest.mark.parametrize(("name", "regulariser"), every_regulariser(), ids=label)


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def slow_gor(gor, batch):
    x, n, labels = batch.descriptors.tolist(), batch.pairs, batch.labels.tolist()
    similarity, squared = [], []
    for i in range(n):
        if gor.negatives == "drawn":
            other = 2 * n + i
        else:
            following = [(i + k) % n for k in range(1, n)]
            mask = batch.not_negative
            fit = [j for j in following if labels[j] != labels[i] and not (mask is not None and mask[i, j])]
            if not fit:
                continue
            other = n + fit[0]
        similarity.append(dot(x[i], x[other]))
        squared.append(max(similarity[-1] ** 2, dot(x[n + i], x[other]) ** 2 if gor.moment == "larger" else 0))
    m1, m2 = sum(similarity) / len(similarity), sum(squared) / len(squared)
    excess = m2 - 1 / len(x[0])
    second = {"hinge": max(0.0, excess), "l1": abs(excess), "l2": excess**2}[gor.second]
    return gor.alpha * (m1**2 + second), {"m1": m1, "m2": m2}


def slow_decorrelation(decorrelation, batch):
    x = batch.descriptors[: batch.pairs].tolist()
    n, dim = len(x), len(x[0])
    mean = [sum(row[d] for row in x) / n for d in range(dim)]
    total = 0.0
    for d in range(dim):
        for e in range(dim):
            if d != e:
                total += sum((row[d] - mean[d]) * (row[e] - mean[e]) for row in x) ** 2
    penalty = math.sqrt(total) / n
    return decorrelation.weight * penalty, {"penalty": penalty}


SLOW = {"gor": slow_gor, "decorrelation": slow_decorrelation}


def test_each_regulariser_has_a_reference():
    assert set(SLOW) == set(regularisers.names())


@every
@pytest.mark.parametrize("overlap", [True, False])
def test_equals_the_loop(name, regulariser, overlap):
    batch = some_batch(overlap=overlap)
    value, figures = SLOW[name](regulariser, batch)
    penalty = regulariser(batch)
    assert penalty.value.item() == pytest.approx(value, abs=1e-9)
    assert {key: figure.item() for key, figure in penalty.figures.items()} == pytest.approx(figures, abs=1e-9)
    assert not any(figure.requires_grad for figure in penalty.figures.values())


@every
def test_gradient_is_right(name, regulariser):
    batch = some_batch(n=5, dim=3)
    assert regulariser(batch).value > 0
    assert torch.autograd.gradcheck(
        lambda x: regulariser(replace(batch, descriptors=x)).value, batch.descriptors.requires_grad_()
    )


@every
def test_what_is_missing_is_said(name, regulariser):
    batch = some_batch()
    with pytest.raises(InputError, match="needs a batch of pairs"):
        regulariser(Batch(batch.descriptors, batch.labels))
    if regulariser.needs_drawn:
        with pytest.raises(InputError, match="needs a drawn negative for each pair"):
            regulariser(Batch.of_pairs(batch.descriptors[:18], batch.labels[:18]))


@pytest.mark.parametrize("negatives", ["drawn", "batch"])
def test_gor_is_0_for_uniform_directions_and_1_for_a_point(negatives):
    x = normalize(torch.randn(6000, 16, generator=torch.Generator().manual_seed(0)))
    labels = torch.arange(2000).repeat(3)
    penalty = GlobalOrthogonal(negatives=negatives, second="l1")(Batch(x, labels, 2000))
    # the standard error of M1 is 0.25 / sqrt(2000), that of M2 sqrt(2) / 16 / sqrt(2000)
    assert abs(penalty.figures["m1"]) < 3.5 * 0.25 / math.sqrt(2000)
    assert abs(penalty.figures["m2"] - 1 / 16) < 3.5 * math.sqrt(2) / 16 / math.sqrt(2000)
    assert penalty.value < 0.01
    collapsed = GlobalOrthogonal(negatives=negatives)(Batch(x[:1].repeat(30, 1), torch.arange(10).repeat(3), 10))
    assert collapsed.value.item() == pytest.approx(1 + 1 - 1 / 16, abs=1e-5)


@pytest.mark.parametrize("negatives", ["drawn", "batch"])
def test_descending_gor_spreads_directions_out(negatives):
    generator = torch.Generator().manual_seed(1)
    point = torch.randn(8, generator=generator)
    x = (point + 0.3 * torch.randn(192, 8, generator=generator)).requires_grad_()
    labels, m2 = torch.arange(64).repeat(3), []
    for _ in range(300):
        penalty = GlobalOrthogonal(negatives=negatives)(Batch(normalize(x), labels, 64))
        (gradient,) = torch.autograd.grad(penalty.value, x)
        x = (x - 10 * gradient).detach().requires_grad_()
        m2.append(penalty.figures["m2"].item())
    assert m2[0] > 0.7
    assert m2[-1] < 1 / 8 + 0.01  # the hinge asks for no more
    assert abs(penalty.figures["m1"].item()) < 0.05


@pytest.mark.parametrize("name", regularisers.names())
def test_options_are_closed(name):
    with pytest.raises(UnknownNameError, match="key in regulariser"):
        check(regularisers.get(name), {"aplha": 1}, "regulariser")
    factor = {"gor": "alpha", "decorrelation": "weight"}[name]
    with pytest.raises(InputError, match=factor):
        check(regularisers.get(name), {factor: -1}, "regulariser")
    if name == "gor":
        with pytest.raises(InputError, match="second"):
            check(regularisers.get(name), {"second": "hinges"}, "regulariser")
