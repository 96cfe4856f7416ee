from types import SimpleNamespace

import numpy as np
import pytest

from hardmine.mining.overlap import Overlap


def fake_store(label, image, frame):
    columns = {"image": image, "frame": frame}
    return SimpleNamespace(label=label, num_classes=int(label.max()) + 1, column=columns.get)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_overlap_equals_plain_loops(factor):
    rng = np.random.default_rng(0)
    n = 150
    label, image = rng.integers(0, 40, n), rng.integers(0, 3, n)
    frame = np.concatenate([rng.uniform(0, 100, (n, 2)), rng.uniform(3, 20, (n, 1)), rng.uniform(0, 6, (n, 1))], 1)
    store = fake_store(label, image, frame.astype(np.float32))
    rows = np.flatnonzero(rng.random(n) < 0.8)
    found = Overlap(store, rows, factor)
    expected = np.zeros((40, 40), bool)
    frame = store.column("frame").astype(np.float64)
    for i in rows:
        for j in rows:
            near = np.hypot(*(frame[i, :2] - frame[j, :2])) < factor * min(frame[i, 2], frame[j, 2])
            if image[i] == image[j] and label[i] != label[j] and near:
                expected[label[i], label[j]] = True
    assert expected.any()
    classes = rng.permutation(40)[:25]
    assert np.array_equal(found.among(classes), expected[np.ix_(classes, classes)])
    assert found.pairs == expected.sum() // 2
    assert found.known
    first, second = rng.integers(-1, 40, (2, 6, 30))
    between = [[a >= 0 and b >= 0 and expected[a, b] for a, b in zip(*line)] for line in zip(first, second)]
    assert found.between(first, second).tolist() == between
    assert found.between(first[:, :1], second).shape == (6, 30)
    assert found.class_pairs().tolist() == np.argwhere(np.triu(expected)).tolist()


def test_without_positions_nothing_overlaps_and_it_says_so():
    store = SimpleNamespace(label=np.array([0, 1]), num_classes=2, column=lambda name: None)
    overlap = Overlap(store, np.array([0, 1]), 1.0)
    assert not overlap.known
    assert not overlap.among(np.array([0, 1])).any()
    assert not overlap.between(np.array([0, 1]), np.array([1, 0])).any()
    assert overlap.class_pairs().shape == (0, 2)
