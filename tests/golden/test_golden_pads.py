"""G4 and G8 of the specs: numbers of the released PADS code, in float32, on six points, and of its update."""

import math

import numpy as np
import pytest
import torch

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.mining.pads.controller import Pads
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.metrics import class_spread
from hardmine.mining.pads.options import RELEASED_DEFAULTS, PolicyOptions
from hardmine.mining.pads.support import Support
from hardmine.mining.pads.update import ppo_loss
from hardmine.train.losses import losses


@pytest.fixture
def batch():
    angle = torch.tensor([0, 20, 50, 70, 90, 140], dtype=torch.float64) * math.pi / 180
    return Batch(torch.stack([angle.cos(), angle.sin()], dim=1), torch.tensor([0, 0, 0, 1, 1, 1]))


@pytest.fixture
def tuples(batch):
    triplets = tuple(torch.tensor(rows) for rows in zip((0, 2, 3), (1, 0, 4), (3, 5, 2)))
    return Tuples.from_triplets(triplets, batch)


@pytest.mark.parametrize(("divisor", "value"), [("pairs", 0.42638768), ("or", 0.56851697)])
def test_g4_margin_loss(batch, tuples, divisor, value):
    loss = losses.get("margin")(beta=1.2, learn_beta=False, margin=0.2, divisor=divisor)
    output = loss(batch, tuples)
    assert output.value.item() == pytest.approx(value, abs=1e-7)
    assert output.per_item.tolist() == pytest.approx([0.2528, 0.2528, 0, 0.1472 + 1.0527, 0, 0], abs=1e-4)


def test_g4_triplet_loss(batch, tuples):
    assert losses.get("triplet")(reduction="sum")(batch, tuples).value.item() == pytest.approx(1.39534509, abs=3e-7)
    assert losses.get("triplet")()(batch, tuples).value.item() == pytest.approx(1.39534509 / 3, abs=1e-7)


def test_g4_class_distances(batch):
    found = class_spread(batch.descriptors.numpy(), batch.labels.numpy())
    assert found.intra == pytest.approx(0.271165656, abs=2e-8)
    assert found.inter == pytest.approx(0.759799584, abs=1e-7)
    assert found.lone == 0


@pytest.mark.parametrize(
    ("advantage", "ratio", "value"),
    [(1, 0.5, 0.5), (1, 1, 1), (1, 1.5, 1.2), (-1, 0.5, -0.8), (-1, 1, -1), (-1, 1.5, -1.5)],
)
def test_g8_ppo(advantage, ratio, value):
    now, old = torch.tensor([math.log(ratio)], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    assert -ppo_loss(now, old, advantage, 0.2).item() == pytest.approx(value, abs=1e-12)


def test_g8_calls_and_size_of_the_state():
    pads = Pads(PolicyOptions(every=30), Distribution.starting(Support()), total_steps=200)
    assert [step for step in range(1, 200) if pads.due(step)] == [31, 61, 91, 121, 151, 181]
    assert PolicyOptions().state_size(29) == 198
    assert PolicyOptions(**RELEASED_DEFAULTS).state_size(29) == 128


def test_the_bins_of_the_default_grid():
    distance = torch.tensor([0, 0.144, 0.145, 0.24, 0.5, 0.63, 0.64, 1.35, 1.36, 2], dtype=torch.float64)
    assert Support().bin_of(distance).tolist() == [0, 0, 1, 3, 8, 11, 12, 27, 28, 28]
    weights = np.array(Distribution.starting(Support(), "uniform_low").q)
    assert weights[3:12] == pytest.approx(np.full(9, 1 / 9))
    assert np.delete(weights, range(3, 12)).max() < 1e-14
