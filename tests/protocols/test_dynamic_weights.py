"""`analyse dynamic-weights`: the weights of pairs against derivatives by hand, and its files."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from command import run

from hardmine.errors import InputError
from hardmine.mining.staged import Elapsed
from hardmine.protocols.dynamic_weights import analyse_dynamic_weights, pair_weights
from hardmine.train.losses import losses

GRID = np.linspace(0, 1, 11)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def positive_by_hand(name, p, w, other):
    """|d loss / d p| at the published options, one positive and one negative."""
    slope = 2 * w * (0.9 - p)
    if name == "binomial-deviance":
        return abs(2 * (1 + slope)) * sigmoid(2 * (0.5 - p + w * (0.9 - p) ** 2))
    if name == "lifted-log":
        return abs(1 + slope)
    if name == "multi-similarity":
        return abs(2 + slope) / 2 * sigmoid(-2 * (p - 0.5) + w * (0.9 - p) ** 2)
    return abs(1 + slope) if p - other < 0.5 else 0.0


def negative_by_hand(name, q, w, other):
    slope = 2 * w * (q - 0.1)
    if name == "binomial-deviance":
        return abs(40 * (1 + slope)) * sigmoid(40 * (q - 0.5 + w * (q - 0.1) ** 2))
    if name == "lifted-log":
        return abs(1 + slope)
    if name == "multi-similarity":
        return abs(50 + slope) / 50 * sigmoid(50 * (q - 0.5) + w * (q - 0.1) ** 2)
    return abs(1 + slope) if other - q < 0.5 else 0.0


@pytest.mark.parametrize("omega", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("name", ["binomial-deviance", "lifted-log", "multi-similarity", "similarity-triplet"])
def test_weights_are_the_derivatives(name, omega):
    positive, negative = pair_weights(losses.get(name)(dynamic=True), omega, GRID, 0.45)
    assert positive.tolist() == pytest.approx([positive_by_hand(name, s, omega, 0.45) for s in GRID], abs=1e-9)
    assert negative.tolist() == pytest.approx([negative_by_hand(name, s, omega, 0.45) for s in GRID], abs=1e-9)


def test_what_is_selected_away_has_no_weight():
    positive, negative = pair_weights(losses.get("lifted-log")(select=True, dynamic=True), 1.0, GRID, 0.5)
    assert (positive > 0).tolist() == [bool(s < 0.9) for s in GRID]  # nearer positives go, and so does the anchor
    assert (negative > 0).tolist() == [bool(s > 0.1) for s in GRID]


def test_files_for_every_loss_and_the_command(tmp_path):
    facts = analyse_dynamic_weights("all", tmp_path / "out", {"omegas": [0, 2], "points": 5, "other": 0.4})
    assert list(facts["losses"]) == ["binomial-deviance", "lifted-log", "multi-similarity", "similarity-triplet"]
    assert json.loads((tmp_path / "out" / "dynamic-weights.json").read_text()) == facts
    lines = list(csv.DictReader((tmp_path / "out" / "dynamic-weights.csv").open()))
    assert len(lines) == 4 * 2 * 5
    by_csv = {(x["loss"], float(x["omega"]), float(x["similarity"])): float(x["positive"]) for x in lines}
    (line,) = (x for x in facts["points"] if (x["loss"], x["omega"], x["pair"]) == ("lifted-log", 2.0, "positive"))
    assert line["at 0.25"] == by_csv["lifted-log", 2.0, 0.25] == pytest.approx(1 + 4 * 0.65)
    assert (tmp_path / "out" / "dynamic-weights.png").read_bytes()[:4] == b"\x89PNG"
    options = ["--set", "omegas=[1]", "--set", "loss.tau_p=0.8", "--set", "points=5"]
    shown = run("analyse", "dynamic-weights", "lifted-log", "--out", tmp_path / "two", *options, "--json")
    assert json.loads(shown)["losses"]["lifted-log"]["tau_p"] == 0.8
    words = ("analyse", "dynamic-weights", "lifted-log", "--out", tmp_path / "three", "--checkpoints", "3")
    assert "takes no --checkpoints" in run(*words, code=2)


def test_a_runs_own_omegas_are_drawn(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    recipe = {"data": {"store": "s"}, "loss": {"name": "multi-similarity", "dynamic": True, "beta": 40.0}}
    (folder / "run.json").write_text(json.dumps({"recipe": recipe}))
    with pytest.raises(InputError, match="no line with an omega in its log yet"):
        analyse_dynamic_weights(folder, tmp_path / "out")
    log = [{"step": s, "loss": 1.0, "loss/omega": 2 * (s // 2) / 20} for s in range(1, 20)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    facts = analyse_dynamic_weights(folder, tmp_path / "out")
    assert sorted({line["omega"] for line in facts["points"]}) == [0.0, 0.2, 0.4, 0.7, 0.9]
    assert facts["losses"]["multi-similarity"]["beta"] == 40
    with pytest.raises(InputError, match="name a loss to try others"):
        analyse_dynamic_weights(folder, tmp_path / "out", {"loss": {"beta": 3}})
    (folder / "run.json").write_text(json.dumps({"recipe": {**recipe, "loss": {"name": "multi-similarity"}}}))
    with pytest.raises(InputError, match="without dynamic terms"):
        analyse_dynamic_weights(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("lifted-lg", {}, "Did you mean 'lifted-log'"),
        ("margin", {}, "unknown run folder, or loss with dynamic terms"),
        ("lifted-log", {"loss": {"dynamic": False}}, "nothing changes"),
        ("lifted-log", {"loss": {"lamb": 1}}, "Did you mean 'lam'"),
        ("lifted-log", {"omega": [1]}, "Did you mean 'omegas'"),
    ],
)
def test_what_cannot_be_drawn_is_said(tmp_path, source, options, message):
    with pytest.raises(InputError, match=message):
        analyse_dynamic_weights(source, tmp_path / "out", options)


def test_an_epoch_is_not_needed_where_omega_is_given():
    loss = losses.get("lifted-log")(dynamic=True)
    pair = torch.tensor([[0.3, 0.4]], dtype=torch.float64)
    mask = torch.tensor([[True, False]])
    given, _ = loss.per_row(pair, mask, ~mask, 0.5)
    loss.advance(Elapsed(0, 4))
    assert loss.omega == 0.5
    assert torch.equal(given, loss.per_row(pair, mask, ~mask)[0])
