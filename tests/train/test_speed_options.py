"""Half precision, compiling, fused optimisers: what they leave alone, what a resume keeps; and the phases of a run."""

import json

import numpy as np
import pytest
import torch
from rank_scenarios import a_step, pair_plan

from hardmine.errors import InputError
from hardmine.protocols.inspect import run as inspect_run
from hardmine.train.checkpoint import last
from hardmine.train.loop import train
from hardmine.train.networks import build
from hardmine.train.optimizers import NamedOptimizer, Optimizer
from hardmine.train.placed_dropout import PlacedDropout, place_dropout
from hardmine.train.ranks import Ranks
from hardmine.train.recipe import load_recipe
from hardmine.train.runs import Run


def recipe(stores, *overrides):
    options = [f"data.store={stores['train']}", "data.split=train", "network={name='tfeat', unit_norm=true}"]
    options += ["train.pairs=8", "train.steps=6", "train.lag=2", "train.checkpoint_every=2", "train.log_every=1"]
    return load_recipe("hardnet", [*options, *overrides])


class Stop(Exception):
    pass


def stop(step, steps, figures):
    if step == 3:
        raise Stop


def weights(run):
    return (run / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    "option", ["train.autocast=bfloat16", "train.autocast=float16", "train.compile=true", "optimizer.fused=true"]
)
def test_a_resumed_run_ends_with_the_same_bits(option, stores, tmp_path, monkeypatch):
    compiled = []
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda network: compiled.append(1) or plain(network, backend="eager"))
    chosen = recipe(stores, option)
    train(chosen, tmp_path / "straight")
    with pytest.raises(Stop):
        train(chosen, tmp_path / "stopped", progress=stop)
    train(chosen, tmp_path / "stopped")
    assert weights(tmp_path / "stopped") == weights(tmp_path / "straight")
    assert bool(compiled) == (option == "train.compile=true")
    train(recipe(stores), tmp_path / "plain")
    if option == "train.compile=true":  # the same operations, in the same order
        assert weights(tmp_path / "plain") == weights(tmp_path / "straight")
    if option.startswith("train.autocast"):
        assert weights(tmp_path / "plain") != weights(tmp_path / "straight")


def test_half_precision_keeps_weights_and_loss_in_float32():
    arguments = ("l2net", {"dropout": 0.3}, "triplet-margin", {}, True)
    exact, half = a_step(Ranks("cpu"), *arguments), a_step(Ranks("cpu"), *arguments, "bfloat16")
    assert half["loss"].dtype == torch.float32
    assert all(gradient.dtype == torch.float32 for gradient in half["gradients"].values())
    assert exact["loss"] != half["loss"]
    assert float(half["loss"]) == pytest.approx(float(exact["loss"]), rel=0.05)


def test_float16_scales_the_loss_and_a_checkpoint_keeps_the_scale(stores, tmp_path):
    train(recipe(stores, "train.autocast=float16"), tmp_path / "run")
    saved = last(tmp_path / "run" / "checkpoints").state["scaler"]
    assert saved["scale"] == 65536.0
    assert saved["_growth_tracker"] == 6
    train(recipe(stores), tmp_path / "plain")
    assert last(tmp_path / "plain" / "checkpoints").state["scaler"] is None


def test_an_update_with_a_gradient_that_is_not_finite_is_left_out():
    network = build("tfeat")
    optimizer = NamedOptimizer(Optimizer(lr=1.0), network)
    scaler = torch.amp.GradScaler("cpu")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    loss = scaler.scale(network(torch.rand(2, 1, 32, 32)).sum())
    loss.backward()
    next(network.parameters()).grad[0] = torch.inf
    optimizer.step(1.0, scaler)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert scaler.get_scale() == 32768.0


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_fused_updates_are_the_plain_ones(name):
    after = []
    for fused in (False, True):
        network = build("tfeat", {}, 0)
        optimizer = NamedOptimizer(Optimizer(name=name, lr=0.1, fused=fused), network)
        assert optimizer.torch.defaults["fused"] is fused
        for step in range(3):
            optimizer.zero_grad()
            network(torch.rand(4, 1, 32, 32, generator=torch.Generator().manual_seed(step))).square().sum().backward()
            optimizer.step(0.5)
        after.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert torch.allclose(*after, rtol=1e-4, atol=1e-5)


def test_dropout_keeps_the_mean_and_belongs_to_the_slot_the_step_and_the_call():
    network = build("l2net", {"dropout": 0.3})
    names = list(network.state_dict())
    masks = place_dropout(network, several=True)
    assert list(network.state_dict()) == names
    layer = next(m for m in network.modules() if isinstance(m, PlacedDropout))
    x = torch.ones(16, 128, 8, 8)
    masks.begin(7, 16, None)
    whole, again = layer(x), layer(x)
    assert whole.unique().tolist() == pytest.approx([0, 1 / 0.7], rel=1e-4)
    assert float((whole == 0).float().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(whole.mean()) == pytest.approx(1, abs=0.01)
    assert not torch.equal(whole, again)  # another call, another mask
    slots = pair_plan().slots(1, 4)[:4]
    masks.begin(7, 16, slots)
    assert torch.equal(layer(x[:4]), whole[torch.from_numpy(slots)])
    with pytest.raises(InputError, match="acts on 8 rows where this process has 4 items"):
        layer(x[:8])
    masks.begin(8, 16, None)
    assert not torch.equal(layer(x), whole)
    network.eval()
    assert torch.equal(layer(x), x)
    network.features[18] = torch.nn.Dropout2d(0.1)
    with pytest.raises(InputError, match="Dropout2d draws other masks in each process"):
        place_dropout(network, several=True)


def test_the_log_says_where_the_time_of_a_step_goes(stores, tmp_path):
    done = train(recipe(stores), tmp_path / "run")
    lines = [json.loads(line) for line in (done.path / "log.jsonl").read_text().splitlines()]
    step = {"plan", "loading", "transform", "forward", "loss", "backward", "optimiser"}
    assert all(f"seconds/{phase}" in line for line in lines for phase in step)
    opened = Run.open(done.path)
    assert step <= set(opened.seconds())
    assert not any("gather" in phase for phase in opened.seconds())
    table = {line["phase"]: line for line in inspect_run(opened)["phases"]}
    assert step | {"checkpoint", "gather (ahead)", "transform (ahead)"} == set(table)
    assert sum(line["share"] or 0 for line in table.values()) == pytest.approx(1, abs=1e-3)
    assert table["gather (ahead)"]["share"] is None
    forward = sum(line["seconds/forward"] for line in lines)
    assert table["forward"]["ms per step"] == pytest.approx(1e3 * forward / 6, abs=0.01)
    assert np.isfinite(forward)
