"""Loss and distance numerics: public bug reports as tests. The numbers are those of the bug-case log."""

from dataclasses import replace

import pytest
import torch
from loss_world import apply, every_loss, every_regulariser, label
from torch.nn.functional import normalize

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.mining.miners.drawn import Drawn
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.train.losses import losses
from hardmine.train.losses.hard_triplet import HardTriplet
from hardmine.train.losses.triplet_margin import TripletMargin
from hardmine.train.networks import build, networks

HALF = [torch.float16, torch.bfloat16]
each_loss = pytest.mark.parametrize(("name", "loss"), every_loss(), ids=label)
each_regulariser = pytest.mark.parametrize(("name", "regulariser"), every_regulariser(), ids=label)


def coinciding(dtype):
    """Three pairs with drawn negatives: every anchor is its positive and its drawn negative."""
    x = torch.eye(4, dtype=dtype)[[0, 1, 2] * 3]
    x[[2, 5, 8]] = 0  # one is the descriptor of a patch without structure
    x[[1, 4, 7]] = -x[0]  # and two pairs are opposite
    return x


@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_100_gradient_is_finite_where_descriptors_coincide(name, loss, dtype):
    for negatives in ("negative", "positive", "drawn", "everything"):
        x = coinciding(dtype)
        if negatives == "everything":
            x[:] = x[0]  # all descriptors of all classes are one
        batch = Batch(x.requires_grad_(), torch.tensor([0, 1, 2] * 2 + [1, 2, 0]), 3)
        tuples = None
        if loss.needs_tuples:
            tuples = Drawn(swap=True)(batch) if negatives == "drawn" else HardestInBatch()(batch)
            if negatives == "positive":  # the negative coincides as well
                tuples = Tuples(tuples.anchor, tuples.positive, tuples.positive, tuples.item)
        loss(batch, tuples).value.backward()
        assert torch.isfinite(x.grad).all()


@each_regulariser
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_100_gradient_of_a_regulariser_is_finite_where_descriptors_coincide(name, regulariser, dtype):
    for x in (coinciding(dtype), torch.eye(4, dtype=dtype)[[0] * 9], torch.zeros(9, 4, dtype=dtype)):
        batch = Batch(x.requires_grad_(), torch.tensor([0, 1, 2] * 2 + [1, 2, 0]), 3)
        penalty = regulariser(batch).value
        penalty.backward()
        assert torch.isfinite(penalty)
        assert torch.isfinite(x.grad).all()


def test_101_a_pair_is_never_its_own_negative():
    x = normalize(torch.randn(1000, 128, generator=torch.Generator().manual_seed(0))).repeat(2, 1)
    batch = Batch.of_pairs(x, torch.arange(1000).repeat(2))
    tuples = HardestInBatch(negatives="all")(batch)
    assert tuples.skipped == 0
    assert not torch.any(tuples.negative % 1000 == tuples.item)
    # a = p, and the loss does not get its distance from |a|^2 + |p|^2 - 2 a.p: it is 0, not a rounding error
    at_zero = TripletMargin(margin=0)(batch, Tuples(tuples.anchor, tuples.positive, tuples.positive, tuples.item))
    assert at_zero.value.item() == 0.0
    assert torch.all(HardTriplet(t=0)(batch, tuples).per_item == 0)


@pytest.mark.parametrize("name", networks.names())
@pytest.mark.parametrize(("mode", "half"), [("train", "autocast"), ("eval", "autocast"), ("eval", "module")])
@pytest.mark.parametrize("dtype", HALF)
def test_103_constant_patches_stay_finite_in_half_precision(name, mode, half, dtype):
    network = getattr(build(name), mode)()
    patches = torch.full((3, 1, network.side, network.side), 0.0)
    patches[1], patches[2] = 0.5, 0.3  # black, grey, and a grey that float32 has to round
    with torch.autocast("cpu", dtype=dtype, enabled=half == "autocast"):
        network = network.to(dtype) if half == "module" else network
        descriptors = network(patches)
    assert descriptors.dtype == torch.float32
    assert torch.isfinite(descriptors).all()
    descriptors.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


def half_batch(dtype):
    x = normalize(torch.randn(48, 64, generator=torch.Generator().manual_seed(2))).to(dtype)
    return Batch(x, torch.cat([torch.arange(16).repeat(2), torch.arange(16).roll(1)]), 16)


@each_loss
@pytest.mark.parametrize("dtype", HALF)
def test_104_losses_compute_in_float32_under_autocast_and_for_half_descriptors(name, loss, dtype):
    half = half_batch(dtype)
    expected = apply(loss, replace(half, descriptors=half.descriptors.float()), torch.rand(16))
    with torch.autocast("cpu", dtype=dtype):
        output = apply(loss, replace(half, descriptors=half.descriptors.clone().requires_grad_()))
    assert output.value.dtype == output.per_item.dtype == torch.float32
    assert torch.equal(output.per_item, expected.per_item)
    output.value.backward()


@each_regulariser
@pytest.mark.parametrize("dtype", HALF)
def test_104_regularisers_compute_in_float32_under_autocast_and_for_half_descriptors(name, regulariser, dtype):
    half = half_batch(dtype)
    draws = [torch.Generator().manual_seed(0) for _ in range(2)]  # of the non-matching pairs, the same for both
    expected = regulariser(replace(half, descriptors=half.descriptors.float(), generator=draws[0]))
    with torch.autocast("cpu", dtype=dtype):
        leaf = half.descriptors.clone().requires_grad_()
        penalty = regulariser(replace(half, descriptors=leaf, generator=draws[1]))
    assert penalty.value.dtype == torch.float32
    assert torch.equal(penalty.value, expected.value)
    assert all(torch.equal(figure, expected.figures[key]) for key, figure in penalty.figures.items())
    penalty.value.backward()


@each_loss
@pytest.mark.parametrize("pairs", [0, 1, 4])
def test_105_a_batch_without_a_negative_has_loss_zero_with_a_gradient(name, loss, pairs):
    x = torch.randn(2 * pairs, 8, requires_grad=True)
    batch = Batch.of_pairs(x, torch.zeros(2 * pairs, dtype=torch.int64))  # one class
    output = apply(loss, batch, torch.ones(pairs))
    assert output.per_item.shape == (pairs,)
    output.value.backward()
    if getattr(loss, "negatives", "") == "none":  # it needs none
        assert torch.isfinite(x.grad).all()
        return
    tuples = HardestInBatch()(batch)
    assert (len(tuples), tuples.skipped) == (0, pairs)
    assert output.value.item() == 0.0
    assert torch.equal(x.grad, torch.zeros_like(x))


@each_regulariser
@pytest.mark.parametrize("pairs", [0, 1])
def test_105_a_batch_without_a_pair_of_pairs_has_a_finite_penalty_with_a_gradient(name, regulariser, pairs):
    x = torch.randn(3 * pairs, 8, requires_grad=True)
    penalty = regulariser(Batch(x, torch.arange(3 * pairs) // 2, pairs)).value
    penalty.backward()
    assert torch.isfinite(penalty)
    assert torch.isfinite(x.grad).all()
    if not regulariser.needs_drawn:
        assert penalty.item() == pytest.approx(0, abs=2e-6)


EASY = [
    ("aht", {"t": 0.1}),
    ("contrastive", {"eps_neg": 1.0}),
    ("contrastive", {"negatives": "none"}),
    ("ht", {"t": 0.1}),
    ("lifted", {"margin": 0.1}),
    ("n-pair-hinge", {"margin": 0.1}),
    ("triplet-margin", {"margin": 0.1}),
    ("triplet-ranking", {"margin": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), EASY)
def test_105_a_batch_of_easy_pairs_has_loss_zero_with_a_gradient(name, options):
    scale = 10 if name == "lifted" else 1  # it sums over its negatives
    x = (scale * torch.eye(6)).repeat(2, 1).requires_grad_()
    output = apply(losses.get(name)(**options), Batch.of_pairs(x, torch.arange(6).repeat(2)))
    assert output.value.item() == 0.0
    output.value.backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
