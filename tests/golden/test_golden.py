"""Numbers that the published programs give for small inputs, to all the digits they printed."""

import math

import pytest
import torch

from hardmine.metrics.fpr95 import fpr95
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.train.losses.hard_triplet import AngularHardTriplet
from hardmine.train.losses.triplet_margin import TripletMargin

DEGREES = [0, 40, 95, 200, 10, 62, 80, 230]  # four anchors, their four positives


@pytest.fixture
def descriptors():
    angle = torch.tensor(DEGREES, dtype=torch.float64) * math.pi / 180
    return torch.stack([angle.cos(), angle.sin()], dim=1)


@pytest.mark.parametrize(("swap", "value"), [(False, 0.425310173), (True, 0.553419568)])
def test_g1_hardnet_triplet_margin(descriptors, swap, value):
    miner = HardestInBatch(negatives="cross", swap=swap, near_duplicate=0.008)
    tuples = miner(descriptors, torch.arange(4).repeat(2))
    assert TripletMargin(margin=1)(descriptors, tuples).value.item() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("negatives", "per_item"),
    [("within", [0.543074, 1.048739, 0.969843, 0]), ("cross", [0.756306, 0.873279, 0.736811, 0])],
)
def test_g2_angular_hard_triplet(descriptors, negatives, per_item):
    tuples = HardestInBatch(negatives=negatives)(descriptors, torch.arange(4).repeat(2))
    output = AngularHardTriplet(t=1)(descriptors, tuples)
    assert output.per_item.tolist() == pytest.approx(per_item, abs=1e-6)
    assert output.value.item() == pytest.approx(sum(per_item) / 4, abs=1e-6)


def test_g5_fpr95():
    distance = [0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    match = [1, 1, 0, 1, 1, 0, 1, 0, 0, 0]
    assert fpr95(distance, match) == 0.4
    assert fpr95(distance, match, "hardnet") == 0.4
    assert fpr95(distance, match, "legacy") == pytest.approx(2 / 7)
