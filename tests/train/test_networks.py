"""Networks: shapes, seeds, identity, and weights that come from elsewhere."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.train.networks import build, load_weights, networks

NAMES = ["l2net", "tfeat"]


def patches(n=4, seed=0):
    return torch.rand(n, 1, 32, 32, generator=torch.Generator().manual_seed(seed))


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
    assert build("l2net", {"dropout": 0.1}).identity()["options"] == {"dropout": 0.1}


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
    source.train()(patches())  # moves the running statistics too
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
