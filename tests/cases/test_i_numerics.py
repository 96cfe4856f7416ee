"""Loss and distance numerics: public bug reports as tests. The numbers are those of the bug-case log."""

import pytest
import torch
from torch.nn.functional import normalize

from hardmine.mining.miners import Tuples
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.train.losses.hard_triplet import AngularHardTriplet, HardTriplet
from hardmine.train.losses.triplet_margin import TripletMargin
from hardmine.train.networks import build, networks

LOSSES = [TripletMargin(), HardTriplet(), AngularHardTriplet()]
HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_100_gradient_is_finite_where_descriptors_coincide(loss, dtype):
    x = torch.eye(4, dtype=dtype)[[0, 1, 2, 0, 1, 2]]  # every anchor is its positive
    x[2] = x[5] = 0  # and one is the descriptor of a patch without structure
    x[1] = x[4] = -x[0]  # and two pairs are opposite
    tuples = HardestInBatch()(x, torch.arange(3).repeat(2))
    for negative in (tuples.negative, tuples.positive):  # the negative coincides as well
        x.requires_grad_().grad = None
        chosen = Tuples(tuples.anchor, tuples.positive, negative, tuples.item)
        loss(x, chosen).value.backward()
        assert torch.isfinite(x.grad).all()


def test_101_a_pair_is_never_its_own_negative():
    x = normalize(torch.randn(1000, 128, generator=torch.Generator().manual_seed(0))).repeat(2, 1)
    tuples = HardestInBatch(negatives="all")(x, torch.arange(1000).repeat(2))
    assert tuples.skipped == 0
    assert not torch.any(tuples.negative % 1000 == tuples.item)
    # a = p, and the loss does not get its distance from |a|^2 + |p|^2 - 2 a.p: it is 0, not a rounding error
    at_zero = TripletMargin(margin=0)(x, Tuples(tuples.anchor, tuples.positive, tuples.positive, tuples.item))
    assert at_zero.value.item() == 0.0
    assert torch.all(HardTriplet(t=0)(x, tuples).per_item == 0)


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


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("dtype", HALF)
def test_104_losses_compute_in_float32_under_autocast_and_for_half_descriptors(loss, dtype):
    half = normalize(torch.randn(32, 64, generator=torch.Generator().manual_seed(2))).to(dtype)
    labels = torch.arange(16).repeat(2)
    tuples = HardestInBatch()(half, labels)
    expected = loss(half.float(), tuples, torch.rand(16))
    with torch.autocast("cpu", dtype=dtype):
        output = loss(half.clone().requires_grad_(), HardestInBatch()(half, labels), None)
    assert output.value.dtype == output.per_item.dtype == torch.float32
    assert torch.equal(output.per_item, expected.per_item)
    output.value.backward()


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("pairs", [0, 1, 4])
def test_105_a_batch_without_a_triplet_has_loss_zero_with_a_gradient(loss, pairs):
    x = torch.randn(2 * pairs, 8, requires_grad=True)
    tuples = HardestInBatch()(x, torch.zeros(2 * pairs, dtype=torch.int64))  # one class
    assert (len(tuples), tuples.skipped) == (0, pairs)
    output = loss(x, tuples, torch.ones(pairs))
    assert output.value.item() == 0.0
    output.value.backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("loss", [TripletMargin(margin=0.1), HardTriplet(t=0.1), AngularHardTriplet(t=0.1)], ids=repr)
def test_105_a_batch_of_easy_triplets_has_loss_zero_with_a_gradient(loss):
    x = torch.eye(6).repeat(2, 1).requires_grad_()
    output = loss(x, HardestInBatch()(x, torch.arange(6).repeat(2)))
    assert output.value.item() == 0.0
    output.value.backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
