"""The losses of image embeddings on batches of single items, on the tuples of every miner, against loops."""

import math
from dataclasses import replace

import pytest
import torch
from loss_world import some_items, started

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples, miners
from hardmine.train.losses import losses

ON_ITEMS = sorted(set(miners.names()) - {"drawn", "hardest-in-batch"})  # those two choose among pairs
LOSSES = {
    "triplet": {"margin": 0.3},
    "margin": {"beta": 0.9},
    "contrastive": {"eps_pos": 0.2, "eps_neg": 1.0},
}
on_every_miner = pytest.mark.parametrize("miner", ON_ITEMS)
with_every_loss = pytest.mark.parametrize("name", sorted(LOSSES))


def mined(miner, batch, seed=1):
    return miners.get(miner)()(replace(batch, generator=torch.Generator().manual_seed(seed)))


def loop(name, batch, tuples, weight):
    """(value, the mean loss of each item's tuples)."""
    x, options = batch.descriptors.tolist(), LOSSES[name]
    found, with_loss = [[] for _ in x], 0
    total = 0.0
    for a, p, n, item in zip(*(rows.tolist() for rows in (*tuples.triplets, tuples.item)), strict=True):
        near, far = math.dist(x[a], x[p]), math.dist(x[a], x[n])
        if name == "triplet":
            terms = [near**2 - far**2 + options["margin"]]
        elif name == "margin":
            near, far = (math.sqrt(d**2 + 1e-8) for d in (near, far))
            terms = [near - options["beta"] + 0.2, options["beta"] - far + 0.2]
        else:
            near, far = (math.sqrt(d**2 + 1e-6) for d in (near, far))
            terms = [near - options["eps_pos"], options["eps_neg"] - far]
        terms = [max(0.0, term) for term in terms]
        with_loss += sum(term > 0 for term in terms)
        found[item].append(sum(terms))
        total += weight[item] * sum(terms)
    per_item = [sum(values) / len(values) if values else 0.0 for values in found]
    if name == "triplet":
        return total / max(1, len(tuples)), per_item
    if name == "margin":
        return total / max(1, with_loss), per_item
    return sum(w * value for w, value in zip(weight, per_item, strict=True)) / len(x), per_item


@on_every_miner
@with_every_loss
@pytest.mark.parametrize("sizes", [(3, 1, 2, 4), (2, 2), (1, 1)])
def test_equals_the_loop(miner, name, sizes):
    batch = some_items(sizes)
    tuples, loss = mined(miner, batch), started(losses.get(name)(**LOSSES[name]))
    weight = torch.linspace(0.5, 1.5, batch.items, dtype=torch.float64)
    value, per_item = loop(name, batch, tuples, weight.tolist())
    output = loss(batch, tuples, weight)
    assert output.value.item() == pytest.approx(value, abs=1e-6)  # betas are kept in float32
    assert output.per_item.tolist() == pytest.approx(per_item, abs=1e-6)
    if sizes == (3, 1, 2, 4):
        assert value > 0


@on_every_miner
@with_every_loss
def test_gradients_are_finite_also_where_descriptors_coincide(miner, name):
    batch = some_items((3, 1, 2, 4))
    batch.descriptors[1:4] = batch.descriptors[0]
    x = batch.descriptors.float().requires_grad_()
    batch = replace(batch, descriptors=x)
    started(losses.get(name)(**LOSSES[name]))(batch, mined(miner, batch)).value.backward()
    assert torch.isfinite(x.grad).all()


def test_without_negatives_each_item_has_all_of_its_class_as_positives():
    batch, loss = some_items((3, 1, 2, 4)), losses.get("contrastive")(negatives="none", eps_pos=0.2)
    x, labels = batch.descriptors.tolist(), batch.labels.tolist()
    wanted = []
    for i, one in enumerate(x):
        others = [
            math.sqrt(math.dist(one, x[j]) ** 2 + 1e-6) for j in range(len(x)) if j != i and labels[j] == labels[i]
        ]
        wanted.append(sum(max(0.0, d - 0.2) for d in others) / max(1, len(others)))
    output = loss(batch)
    assert output.per_item.tolist() == pytest.approx(wanted, abs=1e-9)
    assert output.value.item() == pytest.approx(sum(wanted) / len(x), abs=1e-9)
    assert min(wanted) == 0 < max(wanted)
    assert torch.autograd.gradcheck(
        lambda d: loss(replace(batch, descriptors=d)).value, batch.descriptors.requires_grad_()
    )


def test_an_item_that_is_its_own_positive_and_negative_has_a_finite_loss():
    """What self-regularisation may draw."""
    x, row = torch.eye(2, dtype=torch.float64).requires_grad_(), torch.zeros(1, dtype=torch.int64)
    batch = Batch(x, torch.tensor([0, 1]))
    for name, options in LOSSES.items():
        output = started(losses.get(name)(**options))(batch, Tuples(row, row, row, row))
        output.value.backward()
        assert output.value > 0
        assert torch.isfinite(x.grad).all()
