"""Regularisers against loops in Python's floats, their gradients, and what they promise for random directions."""

import math
from dataclasses import replace

import pytest
import torch
from loss_world import every_regulariser, label, some_batch, some_items
from scipy.stats import chisquare
from torch.nn.functional import normalize

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.batch import Batch
from hardmine.mining.draws import draw_even
from hardmine.options import check
from hardmine.train.regularisers import regularisers
from hardmine.train.regularisers.gor import GlobalOrthogonal

every = pytest.mark.parametrize(("name", "regulariser"), every_regulariser(), ids=label)
# those that single items can be given
on_items = pytest.mark.parametrize(
    ("name", "regulariser"),
    [(name, part) for name, part in every_regulariser() if not part.needs_drawn and "larger" not in repr(part)],
    ids=label,
)


def seeded(batch, seed=3):
    return replace(batch, generator=torch.Generator().manual_seed(seed))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def slow_gor(gor, batch):
    """The sums over the rows. "random": the draws are those of the batch's generator, from a table made by loops."""
    x, n, labels = batch.descriptors.tolist(), batch.items, batch.labels.tolist()
    mask, first = batch.not_negative, 0 if batch.pairs is None else n  # the first row that may be a negative
    fits = [
        [labels[j] != labels[i] and not (mask is not None and bool(mask[i, j])) for j in range(n)] for i in range(n)
    ]
    following = {i: [j % n for j in range(i + 1, i + n) if fits[i][j % n]] for i in range(n)}
    if gor.negatives == "random":
        drawn = draw_even(torch.tensor(fits), batch.generator).tolist()
    similarity, squared = [], []
    for i in range(n):
        chosen = {
            "drawn": lambda i: [2 * n + i],
            "batch": lambda i: [first + j for j in following[i][:1]],
            "all": lambda i: [first + j for j in following[i]],
            "random": lambda i: [first + drawn[i]] if drawn[i] >= 0 else [],
        }[gor.negatives](i)
        for other in chosen:
            similarity.append(dot(x[i], x[other]))
            squared.append(max(similarity[-1] ** 2, dot(x[n + i], x[other]) ** 2 if gor.moment == "larger" else 0))
    count = max(len(similarity), 1)
    m1, m2 = sum(similarity) / count, sum(squared) / count
    excess = m2 - 1 / len(x[0])
    second = {"hinge": max(0.0, excess), "l1": abs(excess), "l2": excess**2}[gor.second]
    return gor.alpha * (m1**2 + second) if similarity else 0.0, {"m1": m1, "m2": m2}


def slow_decorrelation(decorrelation, batch):
    x = batch.descriptors[: batch.items].tolist()
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
    check_against_the_loop(name, regulariser, some_batch(overlap=overlap))


@on_items
@pytest.mark.parametrize("sizes", [(3, 1, 2, 4), (1, 1), (5,), (2, 2, 2)])
def test_single_items_equal_the_loop(name, regulariser, sizes):
    check_against_the_loop(name, regulariser, some_items(sizes))


def check_against_the_loop(name, regulariser, batch):
    value, figures = SLOW[name](regulariser, seeded(batch))
    penalty = regulariser(seeded(batch))
    assert penalty.value.item() == pytest.approx(value, abs=1e-9)
    assert {key: figure.item() for key, figure in penalty.figures.items()} == pytest.approx(figures, abs=1e-9)
    assert not any(figure.requires_grad for figure in penalty.figures.values())


@every
def test_gradient_is_right(name, regulariser):
    batch = some_batch(n=5, dim=3)
    assert regulariser(batch).value > 0
    assert torch.autograd.gradcheck(
        lambda x: regulariser(seeded(replace(batch, descriptors=x))).value, batch.descriptors.requires_grad_()
    )


@on_items
def test_gradient_on_single_items_is_right(name, regulariser):
    batch = some_items((2, 3, 1), dim=3)
    assert regulariser(batch).value > 0
    assert torch.autograd.gradcheck(
        lambda x: regulariser(seeded(replace(batch, descriptors=x))).value, batch.descriptors.requires_grad_()
    )


@pytest.mark.parametrize("negatives", ["random", "batch", "all"])
def test_a_batch_without_a_non_match_has_no_penalty_and_a_gradient(negatives):
    x = some_items((4,)).descriptors.requires_grad_()
    penalty = GlobalOrthogonal(negatives=negatives)(Batch(x, torch.zeros(4, dtype=torch.int64)))
    penalty.value.backward()
    assert penalty.value.item() == 0
    assert (x.grad == 0).all()


def test_random_non_matches_are_even_seeded_and_leave_the_global_generator_alone():
    batch, gor = some_items((3, 1, 2, 4)), GlobalOrthogonal(negatives="random")
    before, counts = torch.get_rng_state(), torch.zeros(10, 10)
    one_hot = replace(batch, descriptors=torch.eye(10, dtype=torch.float64))
    for seed in range(2000):
        others, there = gor._others(seeded(one_hot, seed), one_hot.descriptors)
        assert there.all()
        counts += others
    allowed = batch.labels[:, None] != batch.labels[None, :]
    assert (counts[~allowed] == 0).all()
    for line, possible in zip(counts, allowed, strict=True):
        assert chisquare(line[possible].numpy()).pvalue > 1e-4
    values = {seed: gor(seeded(batch, seed)).value.item() for seed in (0, 1)}
    assert values[0] == gor(seeded(batch, 0)).value.item() != values[1]
    assert torch.equal(torch.get_rng_state(), before)


@every
def test_what_is_missing_is_said(name, regulariser):
    batch = some_batch()
    needs_pairs = regulariser.needs_drawn or getattr(regulariser, "moment", "") == "larger"
    if needs_pairs:
        with pytest.raises(InputError, match=r'needs a batch of pairs .* single items: give negatives = "random"'):
            regulariser(Batch(batch.descriptors, batch.labels))
    if regulariser.needs_drawn:
        with pytest.raises(InputError, match="needs a drawn negative for each pair"):
            regulariser(Batch.of_pairs(batch.descriptors[:18], batch.labels[:18]))


@pytest.mark.parametrize("negatives", ["drawn", "random", "batch", "all"])
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


@pytest.mark.parametrize("negatives", ["drawn", "random", "batch", "all"])
def test_descending_gor_spreads_directions_out(negatives):
    generator = torch.Generator().manual_seed(1)
    point = torch.randn(8, generator=generator)
    x = (point + 0.3 * torch.randn(192, 8, generator=generator)).requires_grad_()
    labels, m2 = torch.arange(64).repeat(3), []
    for _ in range(300):
        penalty = GlobalOrthogonal(negatives=negatives)(Batch(normalize(x), labels, 64, generator=generator))
        (gradient,) = torch.autograd.grad(penalty.value, x)
        x = (x - 10 * gradient).detach().requires_grad_()
        m2.append(penalty.figures["m2"].item())
    assert m2[0] > 0.65
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
