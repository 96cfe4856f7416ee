"""Numbers that the published programs give for small inputs, to all the digits they printed."""

import math

import pytest
import torch

from hardmine.metrics.fpr95 import fpr95
from hardmine.metrics.precision_recall import average_precision, roc_area
from hardmine.mining.batch import Batch
from hardmine.mining.miners.drawn import Drawn
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.mining.staged import Elapsed
from hardmine.train.losses import losses
from hardmine.train.losses.hard_triplet import AngularHardTriplet
from hardmine.train.losses.hardnet_contrastive import HardNetContrastive
from hardmine.train.losses.hardnet_softmax import HardNetSoftmax
from hardmine.train.losses.triplet_margin import TripletMargin
from hardmine.train.losses.triplet_ranking import TripletRanking
from hardmine.train.regularisers.gor import GlobalOrthogonal

DEGREES = [0, 40, 95, 200, 10, 62, 80, 230]  # four anchors, their four positives


@pytest.fixture
def descriptors():
    angle = torch.tensor(DEGREES, dtype=torch.float64) * math.pi / 180
    return torch.stack([angle.cos(), angle.sin()], dim=1)


@pytest.fixture
def pairs(descriptors):
    return Batch.of_pairs(descriptors, torch.arange(4).repeat(2))


@pytest.fixture
def triplets(descriptors):
    """Each pair with the positive of the next as its random negative."""
    return Batch(torch.cat([descriptors, descriptors[[5, 6, 7, 4]]]), torch.tensor([0, 1, 2, 3] * 2 + [1, 2, 3, 0]), 4)


@pytest.mark.parametrize(
    ("swap", "loss", "value"),
    [
        (False, TripletMargin(margin=1), 0.425310173),
        (True, TripletMargin(margin=1), 0.553419568),
        (True, HardNetSoftmax(), 0.493738009),
        (True, HardNetContrastive(), 0.682829335),
    ],
    ids=repr,
)
def test_g1_hardnet(pairs, swap, loss, value):
    tuples = HardestInBatch(negatives="cross", swap=swap, near_duplicate=0.008)(pairs)
    assert loss(pairs, tuples).value.item() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(("swap", "value"), [(False, 0.210453263), (True, 0.341579568)])
def test_g1_random_triplets(triplets, swap, value):
    output = TripletRanking(margin=1, epsilon=1e-8)(triplets, Drawn(swap=swap)(triplets))
    assert output.value.item() == pytest.approx(value, abs=5e-9)  # without swap the formula gives ...267


def test_g1_gor(triplets, pairs):
    assert GlobalOrthogonal()(triplets).value.item() == pytest.approx(0.082287213, abs=1e-9)
    assert GlobalOrthogonal(negatives="batch")(pairs).value.item() == pytest.approx(0.082287213, abs=1e-9)


@pytest.mark.parametrize(
    ("negatives", "per_item"),
    [("within", [0.543074, 1.048739, 0.969843, 0]), ("cross", [0.756306, 0.873279, 0.736811, 0])],
)
def test_g2_angular_hard_triplet(pairs, negatives, per_item):
    output = AngularHardTriplet(t=1)(pairs, HardestInBatch(negatives=negatives)(pairs))
    assert output.per_item.tolist() == pytest.approx(per_item, abs=1e-6)
    assert output.value.item() == pytest.approx(sum(per_item) / 4, abs=1e-6)


def test_g5_fpr95():
    distance = [0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    match = [1, 1, 0, 1, 1, 0, 1, 0, 0, 0]
    assert fpr95(distance, match) == 0.4
    assert fpr95(distance, match, "hardnet") == 0.4
    assert fpr95(distance, match, "legacy") == pytest.approx(2 / 7)


@pytest.mark.parametrize(
    ("labels", "ap", "numpos", "ap_of_more", "area"),
    [
        ([1, 0, 1, 1, 0], 0.763888889, 6, 0.381944444, 0.666666667),
        ([1, 0, 1, 0], 0.791666667, 4, 0.395833333, 0.75),
    ],
)
def test_g6_hpatches(labels, ap, numpos, ap_of_more, area):
    scores = [0.9, 0.8, 0.7, 0.6, 0.5][: len(labels)]
    assert average_precision(scores, labels) == pytest.approx(ap, abs=1e-9)
    assert average_precision(scores, labels, numpos) == pytest.approx(ap_of_more, abs=1e-9)
    assert roc_area(scores, labels) == pytest.approx(area, abs=1e-9)


DSDML = [
    [-0.57866192, -0.26647624, -0.39072251, -0.66443723],
    [0.07102281, 0.26788244, -0.30381832, -0.91153121],
    [-0.15169446, -0.55335200, -0.33690935, -0.74651343],
    [-0.18335581, 0.66150147, 0.09231193, -0.72130096],
    [-0.40958351, -0.09983711, 0.62816489, 0.65397459],
    [0.33820501, -0.03440296, 0.20882349, 0.91696590],
    [0.59726131, 0.46423832, 0.40849173, 0.51078004],
    [0.44107506, 0.76267201, 0.47274372, -0.01725138],
]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-7), (torch.float32, 1e-6)])
@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        ("binomial-deviance", {"select": True}, 0.28082591),
        ("binomial-deviance", {"select": True, "dynamic": True}, 0.68471217),
        ("lifted-log", {"select": True}, 0.62166727),
        ("lifted-log", {"select": True, "dynamic": True}, 0.69000113),
        ("multi-similarity", {"select": True}, 0.21044382),
        ("multi-similarity", {"select": True, "dynamic": True}, 0.23568544),
        ("similarity-triplet", {}, 0.12314270),
        ("similarity-triplet", {"select": True, "dynamic": True}, 0.18880439),
    ],
)
def test_g3_dsdml(name, options, value, dtype, close):
    """Epoch 150 of the program's 600, counted from 0: omega is 0.5. The program printed float32 to eight digits."""
    loss = losses.get(name)(**options, **({"first_epoch": 0} if "dynamic" in options else {}))
    loss.advance(Elapsed(150 * 4, 600 * 4, 4))
    batch = Batch(torch.tensor(DSDML, dtype=dtype), torch.arange(2).repeat_interleave(4))
    assert loss(batch).value.item() == pytest.approx(value, abs=close)
