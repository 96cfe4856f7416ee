"""Miners on distances against loops over the rows, and their draws against the probabilities they state."""

import itertools
import math

import numpy as np
import pytest
import torch
from miner_world import NAMES, as_list, batch, fits, on_a_line, seeded
from torch.nn.functional import normalize

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.density import log_inverse_density
from hardmine.mining.miners import miners
from hardmine.mining.negative_rules import rules
from hardmine.mining.pads.support import Support
from hardmine.mining.staged import Elapsed, Staged

# random


@pytest.mark.parametrize("sizes", [[2, 3, 1], [2, 2]])
def test_random_draws_all_valid_triplets_alike_often(sizes):
    data = batch(sizes)
    labels = data.labels.tolist()
    rows = range(len(labels))
    valid = [
        (a, p, n) for a, p, n in itertools.product(rows, rows, rows) if a != p and labels[a] == labels[p] != labels[n]
    ]
    counts = dict.fromkeys(valid, 0)
    for _ in range(3000):
        for a, p, n, _item in as_list(miners.get("random")(triplets=1 / len(labels))(data)):
            counts[a, p, n] += 1
    assert sum(counts.values()) == 3000
    assert fits(list(counts.values()), np.ones(len(valid)))


def test_random_without_repetition_is_even_also_where_there_are_many_triplets():
    data = batch([4] * 20)  # 18240 valid triplets, 80 drawn: by repeated draws
    counts = np.zeros((80, 80))
    for _ in range(300):
        tuples = miners.get("random")()(data)
        assert len(set(as_list(tuples))) == len(tuples) == 80
        np.add.at(counts, (tuples.anchor, tuples.negative), 1)
    different = (data.labels[:, None] != data.labels[None, :]).numpy()
    assert (counts[~different] == 0).all()
    assert fits(counts.sum(1), np.ones(80))
    assert fits(counts.sum(0), np.ones(80))


# semi-hard


@pytest.mark.parametrize(
    ("d_ap", "margin", "expected"),
    [(2, 3, {3, 4}), (2, 1.5, {3}), (1, 2, {2}), (4, 2, {5}), (1, 0.5, set()), (9, 5, set())],
)
def test_g85_semi_hard_is_between_the_positive_and_the_margin(d_ap, margin, expected):
    # anchor at 0, its positive at -d_ap, negatives at 2, 3, 4, 5: distances equal to a bound are not semi-hard
    found = set()
    for seed in range(60):
        tuples = miners.get("semi-hard")(margin=margin, fallback="skip")(
            on_a_line([0, -d_ap, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4], seed)
        )
        found |= {n for a, _, n, _ in as_list(tuples) if a == 0}
    assert found == expected
    fallen_back = {
        as_list(miners.get("semi-hard")(margin=margin)(on_a_line([0, -d_ap, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4], s)))[0][2]
        for s in range(60)
    }
    assert fallen_back == (expected or {2, 3, 4, 5})


def test_g86_a_class_of_one_item_is_skipped_and_counted():
    for name in NAMES:
        options = {"self_regularisation": False} if name == "pads" else {}
        tuples = miners.get(name)(**options)(batch([1, 2, 1]))
        assert tuples.skipped == 2
        assert len(tuples) == (4 if name == "random" else 2)


def test_semi_hard_draws_positives_and_negatives_evenly():
    x, labels = [0, 1, -1, 2.2, 2.3, 3.5], [0, 0, 0, 1, 2, 3]
    counts = np.zeros((6, 6))
    for seed in range(2000):
        a, p, n, _ = as_list(miners.get("semi-hard")(margin=1.25)(on_a_line(x, labels, seed)))[0]
        assert a == 0
        counts[p, n] += 1
    expected = np.zeros((6, 6))
    expected[1:3, 3] = 1  # d_ap = 1 < 2.2 < 2.25; 2.3 is beyond
    assert fits(counts, expected)


# soft-hard


def test_soft_hard_equals_the_loop():
    data = batch([3, 3, 2, 4], dim=3)
    distance = torch.cdist(data.descriptors, data.descriptors)
    same = data.labels[:, None] == data.labels[None, :]
    seen = {row: (set(), set()) for row in range(12)}
    for seed in range(400):
        for a, p, n, _ in as_list(
            miners.get("soft-hard")()(Batch(data.descriptors, data.labels, generator=seeded(seed)))
        ):
            seen[a][0].add(p)
            seen[a][1].add(n)
    for row in range(12):
        positives = [j for j in range(12) if same[row, j] and j != row]
        negatives = [j for j in range(12) if not same[row, j]]
        near = min(distance[row, j] for j in negatives)
        far = max(distance[row, j] for j in positives)
        assert seen[row][0] == set([j for j in positives if distance[row, j] > near] or positives)
        assert seen[row][1] == set([j for j in negatives if distance[row, j] < far] or negatives)


def test_soft_hard_leaves_out_what_is_equally_far():
    # anchor at 0; positives at 2 and 3, negatives at -2 and -3: only 3 > min d_an = 2, only 2 < max d_ap = 3
    data = [0, 2, 3, -2, -3], [0, 0, 0, 1, 2]
    drawn = {as_list(miners.get("soft-hard")(fallback="skip")(on_a_line(*data, seed)))[0] for seed in range(30)}
    assert drawn == {(0, 2, 3, 0)}


def test_soft_hard_without_fallback_skips():
    data = on_a_line([0, 1, 10, 11, 30, 33], [0, 0, 1, 1, 2, 2])
    assert miners.get("soft-hard")(fallback="skip")(data).skipped == 6
    assert miners.get("soft-hard")()(data).skipped == 0


# distance-weighted


@pytest.mark.parametrize(
    ("distance", "value"), [(0.5, 91.37), (0.8, 39.01), (1.0, 17.98), (1.2, 4.92), (1.4, -0.311), (0.1, 91.37)]
)
def test_log_weights_of_the_published_code(distance, value):
    found = miners.get("distance-weighted")().log_weight(torch.tensor([distance], dtype=torch.float64), 128)
    assert found.item() == pytest.approx(value, abs=6e-3)


def test_weights_are_those_of_the_rule_for_mined_negatives():
    distance = torch.rand(5, 7, dtype=torch.float64, generator=seeded()) * 2
    everything = np.ones((5, 7), bool)
    expected = rules.get("distance-weighted")(cutoff=1.4).log_weight(distance.numpy(), everything, np.zeros(5), 64)
    found = miners.get("distance-weighted")(cutoff=1.4).log_weight(distance, 64)
    assert found.numpy() == pytest.approx(expected)
    bins = rules.get("pads-bins")(p=(1.0,) * 29).bins(distance.numpy())
    assert bins.tolist() == Support().bin_of(distance).tolist()


@pytest.mark.parametrize("options", [{}, {"log_lambda": 2.0}, {"cutoff": 1.35}])
def test_distance_weighted_draws_in_proportion(options):
    data = batch([2, 3, 3, 4], dim=8, dtype=torch.float64)
    x, labels = data.descriptors.numpy(), data.labels.numpy()
    counts = np.zeros((12, 12))
    for seed in range(1200):
        tuples = miners.get("distance-weighted")(**options)(
            Batch(data.descriptors, data.labels, generator=seeded(seed))
        )
        np.add.at(counts, (tuples.anchor, tuples.negative), 1)
    for a in range(12):
        weight = np.zeros(12)
        for j in range(12):
            d = max(math.dist(x[a], x[j]), 0.5)
            if labels[j] != labels[a] and math.dist(x[a], x[j]) <= options.get("cutoff", 3):
                weight[j] = d ** (2 - 8) * (1 - d * d / 4) ** (-(8 - 3) / 2)
                weight[j] = min(weight[j], math.exp(options.get("log_lambda", 99)))
        if weight.any():
            assert fits(counts[a], weight)
        else:
            assert counts[a].sum() == 0


def test_g82_every_anchor_has_a_negative_in_512_dimensions_beyond_1_4():
    x = torch.eye(512)[:12]
    x[6:] = -x[:6] + 0.02 * normalize(torch.randn(6, 512, generator=seeded()))
    x[8] = -x[2]  # d = 2 exactly
    data = Batch(normalize(x), torch.arange(6).repeat_interleave(2), generator=seeded())
    for seed in range(20):
        data.generator.manual_seed(seed)
        tuples = miners.get("distance-weighted")()(data)
        assert tuples.skipped == 0
        assert (data.labels[tuples.anchor] != data.labels[tuples.negative]).all()
    assert miners.get("distance-weighted")(cutoff=1.4)(data).skipped == 12
    one_class = Batch(data.descriptors, torch.zeros(12, dtype=torch.int64), generator=seeded())
    assert (
        miners.get("distance-weighted")()(one_class).skipped,
        len(miners.get("distance-weighted")()(one_class)),
    ) == (12, 0)
    assert torch.isfinite(log_inverse_density(torch.tensor([0.0, 2.0, 2.0000002]), 512, 0.5)).all()


def test_one_anchor_does_not_set_the_scale_of_another():
    # at 1024 dimensions the weights of the near anchor are e^700 times those of the far one
    x = torch.zeros(6, 1024)
    x[[0, 1, 2], 0] = 1.0
    x[2, 1] = 0.6
    x[[3, 4], 2], x[5, 3] = 1.0, 1.0
    data = Batch(normalize(x), torch.tensor([0, 0, 1, 2, 2, 1]), generator=seeded())
    assert miners.get("distance-weighted")()(data).skipped == 0


def test_one_dimension_is_refused():
    with pytest.raises(InputError, match="two dimensions or more"):
        miners.get("distance-weighted")()(Batch(torch.ones(4, 1), torch.tensor([0, 0, 1, 1])))


# curricula


def curriculum_world():
    """The anchor at 0 with negatives at known distances along an arc of the unit circle."""
    distances = [0.22, 0.28, 0.45, 0.58, 0.68, 0.9, 1.3]
    angle = torch.tensor([0.0, 0.01] + [2 * math.asin(d / 2) for d in distances], dtype=torch.float64)
    x = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle), torch.zeros_like(angle)], 1)
    return Batch(x, torch.tensor([0, 0, 1, 2, 3, 4, 5, 6, 7])), distances


@pytest.mark.parametrize(("progress", "low", "high"), [(0, 0.3, 0.7), (0.5, 0.2, 0.6), (1, 0.1, 0.5)])
def test_linear_curriculum_is_a_window_that_moves(progress, low, high):
    data, distances = curriculum_world()
    miner = miners.get("linear-curriculum")()
    assert isinstance(miner, Staged)
    miner.advance(Elapsed(round(10 * progress), 10))
    counts = np.zeros(9)
    for seed in range(500):
        tuples = miner(Batch(data.descriptors, data.labels, generator=seeded(seed)))
        counts[tuples.negative[0]] += 1
    assert fits(counts, [0, 0] + [float(low <= d <= high) for d in distances])


@pytest.mark.parametrize("progress", [0, 0.6, 1])
def test_nonlinear_curriculum_mixes_two_normalised_weights(progress):
    data, distances = curriculum_world()
    miner = miners.get("nonlinear-curriculum")()
    miner.advance(Elapsed(round(10 * progress), 10))
    counts = np.zeros(9)
    for seed in range(1000):
        tuples = miner(Batch(data.descriptors, data.labels, generator=seeded(seed)))
        counts[tuples.negative[0]] += 1
    spread = np.array([max(d, 0.5) ** -2 * (1 - max(d, 0.5) ** 2 / 4) ** -0.5 for d in distances])
    window = np.array([float(0.1 <= d <= 0.5) for d in distances])
    p = (1 - progress**2) * spread / spread.sum() + progress**2 * window / window.sum()
    assert fits(counts, [0, 0, *p])


def test_a_curriculum_without_candidates_in_its_window():
    data = on_a_line([0, 0.1, 5, 5.1], [0, 0, 1, 1])
    assert miners.get("linear-curriculum")()(data).skipped == 0
    assert miners.get("linear-curriculum")(fallback="skip")(data).skipped == 4
    late = miners.get("nonlinear-curriculum")(fallback="skip")
    far = Batch(torch.eye(4), torch.tensor([0, 0, 1, 1]), generator=seeded())
    assert late(far).skipped == 0
    late.advance(Elapsed(10, 10))
    assert late(far).skipped == 4


@pytest.mark.parametrize("numbers", [(-1, 10), (11, 10), (0, 0), (0, 10, 0)])
def test_progress_is_within_the_run(numbers):
    with pytest.raises(InputError, match="expected a step from 0 to the run's last"):
        Elapsed(*numbers)
