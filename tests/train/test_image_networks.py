"""Image networks: shapes, frozen batch norm, torchvision's weights, colour normalisation."""

import pytest
import torch
import torchvision
from torch import nn

from hardmine.errors import InputError, UnknownNameError
from hardmine.train.networks import build, load_weights

SMALL = {"resnet50": {"side": 32, "resize": 36}, "googlenet": {"side": 32, "resize": 36}, "convnet": {"width": 8}}


@pytest.mark.parametrize("name", SMALL)
def test_descriptors_have_the_length_asked_for(name):
    network = build(name, {**SMALL[name], "dim": 24}).eval()
    x = torch.rand(3, network.channels, network.side, network.side)
    found = network(x)
    assert found.shape == (3, 24)
    assert torch.allclose(found.norm(dim=1), torch.ones(3), atol=1e-5)
    free = build(name, {**SMALL[name], "dim": 24, "unit_norm": False}).eval()
    assert torch.allclose(torch.nn.functional.normalize(free(x)), found, atol=1e-4)
    assert network.frame.side == network.side


@pytest.mark.parametrize("side", [28, 29, 45])
def test_convnet_takes_any_side(side):
    network = build("convnet", {"side": side, "width": 4, "blocks": 3, "channels": 3}).eval()
    assert network(torch.rand(2, 3, side, side)).shape == (2, 128)
    assert network.frame.resize == side


def test_frozen_batch_norm_stays_as_it_is_in_training():
    frozen = build("resnet50", {**SMALL["resnet50"], "frozen_bn": True}).train()
    norms = [m for m in frozen.modules() if isinstance(m, nn.BatchNorm2d)]
    before = {k: v.clone() for k, v in frozen.state_dict().items()}
    frozen(torch.rand(4, 3, 32, 32)).sum().backward()
    assert not any(m.training for m in norms)
    assert not any(p.requires_grad for m in norms for p in m.parameters())
    assert frozen.head.weight.grad is not None
    assert all(torch.equal(before[k], v) for k, v in frozen.state_dict().items())
    free = build("resnet50", SMALL["resnet50"]).train()
    assert all(m.training for m in free.modules() if isinstance(m, nn.BatchNorm2d))


@pytest.mark.parametrize(("name", "model"), [("resnet50", "resnet50"), ("googlenet", "googlenet")])
def test_torchvisions_weights_load_and_leave_the_head(name, model, tmp_path):
    extra = {"aux_logits": True, "init_weights": False} if name == "googlenet" else {}
    classifier = getattr(torchvision.models, model)(weights=None, **extra).eval()
    torch.save(classifier.state_dict(), tmp_path / "weights.pth")
    network = build(name, SMALL[name]).eval()
    head = network.head.weight.detach().clone()
    load_weights(network, tmp_path / "weights.pth")
    assert torch.equal(network.head.weight, head)
    x = torch.rand(2, 3, 32, 32)
    if name == "googlenet":
        classifier.aux_logits = classifier.transform_input = False
    classifier.fc = nn.Identity()
    normalised = torchvision.transforms.functional.normalize(x, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert torch.allclose(network.features(normalised), classifier(normalised), rtol=1e-3, atol=1e-4)
    described = nn.functional.linear(classifier(normalised), head, network.head.bias)
    assert torch.allclose(network(x), nn.functional.normalize(described), atol=1e-5)
    with pytest.raises(InputError, match="does not hold the weights"):
        load_weights(build("convnet"), tmp_path / "weights.pth")


def test_bgr_is_dsdmls_input():
    network = build("convnet", {"channels": 3, "normalise": "bgr", "width": 4})
    x = torch.rand(1, 3, 28, 28)
    seen = []
    network.features = lambda images: seen.append(images) or torch.zeros(1, network.head.in_features)
    network(x)
    expected = 255 * x.flip(1) - torch.tensor([104.0, 117.0, 128.0]).view(1, 3, 1, 1)
    assert torch.allclose(seen[0], expected, atol=1e-3)


def test_max_pooling_and_closed_options():
    network = build("resnet50", {**SMALL["resnet50"], "pool": "max"})
    assert isinstance(network.body.avgpool, nn.AdaptiveMaxPool2d)
    with pytest.raises(UnknownNameError, match="Did you mean 'frozen_bn'"):
        build("resnet50", {"frozen_nb": True})
    with pytest.raises(InputError, match="0 < side <= resize"):
        build("resnet50", {"side": 300})
