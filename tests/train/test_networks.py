"""Networks: shapes, seeds, identity, and weights that come from elsewhere."""

import importlib
import os
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.train.networks import build, load_weights, networks
from hardmine.train.networks.gor_net import PositionNorm

NAMES = ["l2net", "cs-l2net", "tfeat", "gor-net", "sosnet", "hynet"]


def patches(n=4, seed=0, side=32):
    return torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(seed))


def test_all_networks_are_here():
    assert networks.names() == sorted([*NAMES, "convnet", "googlenet", "resnet50"])


@pytest.mark.parametrize("name", networks.names())
def test_contract(name):
    network = build(name).eval()
    assert network.name == name
    x = torch.rand(3, network.channels, network.side, network.side)
    descriptors = network(x)
    assert descriptors.shape == (3, network.dim)
    assert descriptors.dtype == torch.float32
    if network.unit_norm:
        assert torch.allclose(descriptors.norm(dim=1), torch.ones(3), atol=1e-5)
    assert torch.allclose(network(x[1:2]), descriptors[1:2], atol=1e-5)  # a patch does not depend on its batch


@pytest.mark.parametrize("name", networks.names())
def test_weights_depend_on_the_seed_alone_and_move_no_generator(name):
    torch.manual_seed(1)
    first = build(name, seed=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = build(name, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.identity() == second.identity()
    assert build(name, seed=6).identity()["weights"] != first.identity()["weights"]


@pytest.mark.parametrize("name", networks.names())
def test_identity_changes_with_weights_and_options_only(name):
    network = build(name)
    before = network.identity()
    assert set(before) == {"network", "weights", "options", "side", "dim"}
    assert network.eval().identity() == before
    with torch.no_grad():
        next(network.parameters()).add_(1)
    assert network.identity()["weights"] != before["weights"]
    assert build("l2net", {"dropout": 0.1}).identity()["options"] == {"dropout": 0.1, "normalisation": "patch"}


@pytest.mark.parametrize("name", NAMES)
def test_flat_patches_and_half_precision_give_finite_float32(name):
    network = build(name).eval()
    grey = torch.tensor([0.0, 0.3, 1.0]).view(3, 1, 1, 1).expand(3, 1, network.side, network.side)
    x = torch.cat([grey, patches(3, side=network.side)])
    full, half = network(x), network.to(torch.bfloat16)(x)
    for found in (full, half):
        assert found.dtype == torch.float32
        assert torch.isfinite(found).all()
    assert torch.nn.functional.cosine_similarity(full[3:], half[3:]).min() > 0.97


def test_options_are_closed():
    with pytest.raises(UnknownNameError, match="Did you mean 'dropout'"):
        build("l2net", {"dropuot": 0.1})
    with pytest.raises(InputError, match="dropout"):
        build("l2net", {"dropout": 1.5})
    with pytest.raises(UnknownNameError, match="Did you mean 'l2net'"):
        build("l2nett")


def test_l2net_is_the_published_stack():
    network = build("l2net", {"dropout": 0.25})
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.out_channels, c.kernel_size[0], c.stride[0], c.padding[0]) for c in convs] == [
        (32, 3, 1, 1), (32, 3, 1, 1), (64, 3, 2, 1), (64, 3, 1, 1), (128, 3, 2, 1), (128, 3, 1, 1), (128, 8, 1, 0),
    ]  # fmt: skip
    assert all(c.bias is None for c in convs)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 7
    assert not any(m.affine for m in norms)
    assert sum(isinstance(m, nn.ReLU) for m in network.modules()) == 6
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.25]
    assert sum(p.numel() for p in network.parameters()) == 1_334_560
    for conv in convs:  # orthogonal with gain 0.6: the singular values of the (out, in) matrix
        assert torch.allclose(torch.linalg.svdvals(conv.weight.flatten(1)), torch.tensor(0.6), atol=1e-4)


def test_l2net_ignores_brightness_and_contrast_of_a_patch():
    network, x = build("l2net").eval(), patches()
    assert torch.allclose(network(x), network(0.4 * x + 0.3), atol=1e-4)
    mean, deviation = 0.443728476019, 0.20197947209
    assert torch.allclose(network(x), network((x - mean) / deviation), atol=1e-4)  # the step that is left out


def test_l2nets_own_normalisation_subtracts_the_mean_image_that_came_with_the_weights(tmp_path):
    own = build("l2net", {"normalisation": "mean-image"}, seed=3)
    plain, x = build("l2net", seed=3).eval(), patches()
    assert torch.allclose(own.eval()(x), plain(x), atol=1e-5)  # black until weights bring one
    image = patches(1, seed=9)[0, 0]
    torch.save({**plain.state_dict(), "mean_image": image}, tmp_path / "w.pth")
    load_weights(own, tmp_path / "w.pth")
    less = (x - image).double().numpy()
    mean, std = less.mean((1, 2, 3), keepdims=True), less.std((1, 2, 3), keepdims=True, ddof=1)
    expected = torch.from_numpy((less - mean) / (std + 1e-12)).float()
    seen = []
    own.features.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    own(torch.cat([x, image[None, None]]))
    assert torch.allclose(seen[0][:4], expected, atol=1e-5)
    assert torch.equal(seen[0][4], torch.zeros(1, 32, 32))  # nothing is left of the mean image itself
    with pytest.raises(InputError, match=r"missing: normalise\.mean_image"):
        load_weights(own, write(tmp_path / "without.pth", plain.state_dict()))
    with pytest.raises(InputError, match=r"unexpected: normalise\.mean_image.*options"):
        load_weights(plain, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"normalise\.mean_image \(9,\) instead of \(1, 32, 32\)"):
        load_weights(own, write(tmp_path / "odd.pth", {**plain.state_dict(), "mean_image": torch.zeros(9)}))


def write(file, content):
    torch.save(content, file)
    return file


def test_cs_l2net_sees_the_half_size_patch_and_its_middle():
    network = build("cs-l2net", seed=2).eval()
    grey = np.random.default_rng(0).integers(0, 256, (3, 64, 64)).astype(np.uint8)
    middle = torch.from_numpy(grey[:, 16:48, 16:48]).unsqueeze(1) / 255  # rows and columns 17 to 48, counted from 1
    small = torch.from_numpy(np.stack([cv2.resize(p, (32, 32), interpolation=cv2.INTER_LINEAR) for p in grey]))
    expected = []
    for tower, view in ((network.surround, small.unsqueeze(1) / 255), (network.central, middle)):
        alone = build("l2net").eval()
        alone.load_state_dict(tower.state_dict())
        expected.append(alone(view) / 2**0.5)
    found = network(torch.from_numpy(grey).unsqueeze(1) / 255)
    assert torch.allclose(found, torch.cat(expected, 1), atol=1e-6)
    assert not torch.equal(network.surround.features[0].weight, network.central.features[0].weight)


def test_cs_l2net_has_a_mean_image_for_each_tower(tmp_path):
    network = build("cs-l2net", {"normalisation": "mean-image"})
    images = {f"{part}.mean_image": patches(1, seed=i)[0] for i, part in enumerate(("surround", "central"))}
    state = {k: v for k, v in network.state_dict().items() if "mean_image" not in k}
    load_weights(network, write(tmp_path / "w.pth", {**state, **images}))
    for part in ("surround", "central"):
        own = network.state_dict()[f"{part}.normalise.mean_image"]
        assert torch.equal(own, images[f"{part}.mean_image"])


def by_position(maps, weight, bias, mean, var):
    """The normalisation, one channel and position at a time."""
    out = np.empty_like(maps)
    for c, i, j in np.ndindex(maps.shape[1:]):
        out[:, c, i, j] = weight[c] * (maps[:, c, i, j] - mean[c, i, j]) / np.sqrt(var[c, i, j] + 1e-3) + bias[c]
    return out


def test_position_norm_against_a_plain_loop():
    norm = PositionNorm(3, 4, decay=0.9).train()
    rng = np.random.default_rng(1)
    with torch.no_grad():
        norm.weight.copy_(torch.from_numpy(rng.normal(1, 0.3, 3)))
        norm.bias.copy_(torch.from_numpy(rng.normal(0, 0.3, 3)))
    weight, bias = (p.detach().double().numpy() for p in (norm.weight, norm.bias))
    running_mean, running_var = np.zeros((3, 4, 4)), np.ones((3, 4, 4))
    for _ in range(2):
        maps = rng.normal(2, 3, (5, 3, 4, 4))
        mean, var = maps.mean(0), ((maps - maps.mean(0)) ** 2).sum(0) / 5
        found = norm(torch.from_numpy(maps).float()).detach().numpy()
        np.testing.assert_allclose(found, by_position(maps, weight, bias, mean, var), atol=2e-5)
        running_mean, running_var = 0.9 * running_mean + 0.1 * mean, 0.9 * running_var + 0.1 * var
    np.testing.assert_allclose(norm.running_mean.numpy(), running_mean, atol=1e-5)
    np.testing.assert_allclose(norm.running_var.numpy(), running_var, rtol=1e-5)
    found = norm.eval()(torch.from_numpy(maps).float()).detach().numpy()
    np.testing.assert_allclose(found, by_position(maps, weight, bias, running_mean, running_var), atol=2e-5)


def test_gor_net_is_the_published_stack():
    network = build("gor-net", {"mean": 0.4, "std": 0.3, "dim": 64}, seed=1).train()
    x = patches(side=64)
    maps = (x - 0.4) / 0.3
    shapes = []
    for conv, norm in zip(network.features[::4], network.features[1::4]):
        maps = F.conv2d(maps, conv.weight, conv.bias)
        shapes.append(tuple(maps.shape[1:]))
        mean, var = maps.mean(0), maps.var(0, correction=0)
        maps = norm.weight.view(-1, 1, 1) * (maps - mean) / (var + 1e-3).sqrt() + norm.bias.view(-1, 1, 1)
        maps = F.max_pool2d(maps.clamp_min(0), 2)
    assert shapes == [(32, 58, 58), (64, 24, 24), (128, 8, 8)]
    assert [m.weight.shape[2] for m in network.features[::4]] == [7, 6, 5]
    raw = F.linear(maps.reshape(4, 2048), network.descriptor.weight, network.descriptor.bias)
    assert raw.shape == (4, 64)
    assert torch.allclose(network(x), raw / raw.norm(dim=1, keepdim=True), atol=1e-5)
    network.unit_norm = False
    assert torch.allclose(network(x), raw / 30, atol=1e-4)
    assert not build("gor-net", {"unit_norm": False}).unit_norm
    for module in (*network.features[::4], network.descriptor):
        assert module.weight.abs().max() <= 0.2
        assert module.weight.std().item() == pytest.approx(0.088, abs=0.004)  # of the truncated distribution
        assert (module.bias == 0.1).all()
    assert network.features[1].decay == 0.999
    assert build("gor-net", {"decay": 0.5}).features[1].decay == 0.5


@pytest.mark.parametrize(("name", "kind"), [("sosnet", "SOSNet"), ("hynet", "HyNet")])
def test_kornias_checkpoints_load_by_their_names(name, kind, tmp_path):
    torch.manual_seed(4)
    published = getattr(importlib.import_module("kornia.feature"), kind)(pretrained=False)
    published.train()(patches(8))
    published.eval()
    network = build(name, seed=2).eval()
    load_weights(network, write(tmp_path / "published.pth", published.state_dict()))
    assert torch.allclose(network(patches()), published(patches()), atol=1e-6)
    assert [m.p for m in build(name, {"dropout": 0.2}).modules() if isinstance(m, nn.Dropout)] == [0.2]


@pytest.mark.parametrize("name", ["sosnet", "hynet"])
def test_without_kornia_the_message_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia.feature", None)
    with pytest.raises(InputError, match=r"pip install 'hardmine\[kornia\]'"):
        build(name)


def test_tfeat_normalises_grey_values_up_to_255():
    network, x = build("tfeat").eval(), patches()
    flat = 255 * x.flatten(1)
    expected = (flat - flat.mean(1, keepdim=True)) / torch.sqrt(flat.var(1, correction=0, keepdim=True) + 1e-5)
    seen = []
    network.features.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    descriptors = network(x)
    assert torch.allclose(seen[0].flatten(1), expected, atol=1e-4)
    assert not network.unit_norm
    unit = build("tfeat", {"unit_norm": True})
    unit.load_state_dict(network.state_dict())
    assert unit.unit_norm
    assert torch.allclose(unit.eval()(x), descriptors / descriptors.norm(dim=1, keepdim=True), atol=1e-6)


def test_dropout_comes_from_the_global_generator():
    network, x = build("l2net").train(), patches()
    torch.manual_seed(9)
    first = network(x)
    torch.manual_seed(9)
    assert torch.equal(network(x), first)
    assert not torch.equal(network(x), first)


@pytest.mark.parametrize("name", NAMES)
def test_weights_travel_through_both_formats(name, tmp_path):
    source = build(name, seed=1)
    source.train()(patches(side=source.side))  # moves the running statistics too
    save_file({k: v.contiguous() for k, v in source.state_dict().items()}, tmp_path / "w.safetensors")
    torch.save(source.state_dict(), tmp_path / "w.pth")
    torch.save({"epoch": 3, "state_dict": source.state_dict()}, tmp_path / "nested.pth")
    for file in ("w.safetensors", "w.pth", "nested.pth"):
        network = build(name, seed=2)
        load_weights(network, tmp_path / file)
        assert network.identity() == source.identity()


def test_old_checkpoints_without_batch_counts_load(tmp_path):
    state = {k: v for k, v in build("l2net", seed=1).state_dict().items() if "num_batches" not in k}
    torch.save({"state_dict": state}, tmp_path / "hardnet.pth")
    network = build("l2net", seed=2)
    load_weights(network, tmp_path / "hardnet.pth")
    assert torch.equal(network.state_dict()["features.19.weight"], state["features.19.weight"])


def published_tfeat(network):
    names = {"features.0": "features.1", "features.3": "features.4", "descriptor.0": "descr.0"}
    return {f"{names[k.rpartition('.')[0]]}.{k.rpartition('.')[2]}": v for k, v in network.state_dict().items()}


def published_hardtfeat(network):
    state = {k.replace("descriptor.0", "classifier.1"): v for k, v in network.state_dict().items()}
    state["classifier.1.weight"] = state["classifier.1.weight"].reshape(128, 64, 8, 8)
    return {"epoch": 1, "state_dict": {**state, "SIFT.gx.0.weight": torch.zeros(1, 1, 1, 3)}}


@pytest.mark.parametrize("publish", [published_tfeat, published_hardtfeat])
def test_published_tfeat_layouts_are_understood(publish, tmp_path):
    source = build("tfeat", seed=1).eval()
    torch.save(publish(source), tmp_path / "published.params")
    network = build("tfeat", seed=2).eval()
    load_weights(network, tmp_path / "published.params")
    assert torch.equal(network(patches()), source(patches()))


def test_wrong_weights_are_named_and_change_nothing(tmp_path):
    network = build("tfeat")
    before = network.identity()
    state = network.state_dict()
    short = {k: v for k, v in state.items() if k != "features.3.bias"}
    cases = {
        "missing.pth": (short, "missing: features.3.bias"),
        "more.pth": ({**state, "extra.weight": torch.zeros(1)}, "unexpected: extra.weight"),
        "shape.pth": ({**state, "features.0.bias": torch.zeros(7)}, r"features.0.bias \(7,\) instead of \(32,\)"),
        "nan.pth": ({**state, "features.0.bias": torch.full((32,), torch.nan)}, "not finite, in features.0.bias"),
        "other.pth": (build("l2net").state_dict(), "missing: .* unexpected: .* more"),
        "list.pth": ([1, 2], "no state dict"),
    }
    for file, (content, message) in cases.items():
        torch.save(content, tmp_path / file)
        with pytest.raises(InputError, match=f"{file}.*{message}"):
            load_weights(network, tmp_path / file)
    (tmp_path / "cut.pth").write_bytes((tmp_path / "more.pth").read_bytes()[:1000])
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    (tmp_path / "empty.pth").write_bytes(b"")
    for file in ("cut.pth", "cut.safetensors", "empty.pth"):
        with pytest.raises(InputError, match=f"{file} cannot be read"):
            load_weights(network, tmp_path / file)
    with pytest.raises(MissingError, match=r"nowhere\.pth"):
        load_weights(network, tmp_path / "nowhere.pth")
    assert network.identity() == before


class Evil:
    def __reduce__(self):
        return (print, ("code ran while weights were read",))


def test_a_pickle_with_code_is_refused(tmp_path, capsys):
    torch.save({"state_dict": {"features.0.bias": Evil()}}, tmp_path / "evil.pth")
    with pytest.raises(InputError, match=r"evil\.pth cannot be read"):
        load_weights(build("tfeat"), tmp_path / "evil.pth")
    assert capsys.readouterr().out == ""


@pytest.mark.shared
@pytest.mark.skipif("HARDMINE_SHARED" not in os.environ, reason="HARDMINE_SHARED names no folder with data/weights")
@pytest.mark.parametrize("file", ["tfeat-liberty.params", "tfeat-notredame.params", "HardTFeat.pth"])
def test_the_published_files_themselves_load(file):
    network = build("tfeat").eval()
    load_weights(network, Path(os.environ["HARDMINE_SHARED"]) / "data" / "weights" / file)
    descriptors = network(patches())
    assert torch.isfinite(descriptors).all()
    assert torch.pdist(descriptors).min() > 0.5  # the distances of noise patches in the published descriptors
