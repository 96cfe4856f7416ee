"""Distances within and between classes against loops over the pairs."""

import math

import numpy as np
import pytest

from hardmine.errors import InputError
from hardmine.mining.pads.metrics import class_spread


def cosine_distance(x, y):
    return 1 - sum(a * b for a, b in zip(x, y)) / (math.hypot(*x) * math.hypot(*y))


@pytest.mark.parametrize("sizes", [[3, 1, 4, 2], [2, 1], [5, 5, 5]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_the_loops(sizes, dtype):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([7, 3, 90, 0][: len(sizes)], sizes))
    x = (rng.normal(size=(len(labels), 6)) * rng.uniform(0.1, 9, (len(labels), 1))).astype(dtype)
    intra, means = [], []
    for c in sorted(set(labels.tolist())):
        rows = [x[i].tolist() for i in np.flatnonzero(labels == c)]
        pairs = [cosine_distance(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
        if pairs:
            intra.append(sum(pairs) / len(pairs))
        unit = [[v / math.hypot(*row) for v in row] for row in rows]
        means.append([sum(column) / len(rows) for column in zip(*unit)])
    inter = [cosine_distance(a, b) for i, a in enumerate(means) for j, b in enumerate(means) if i != j]
    found = class_spread(x, labels)
    assert found.intra == pytest.approx(sum(intra) / len(intra), abs=1e-9)
    assert found.inter == pytest.approx(sum(inter) / len(inter), abs=1e-9)
    assert found.lone == sizes.count(1)


def test_opposite_items_have_no_mean_direction_and_nothing_is_nan():
    x = np.array([[1.0, 0], [-1, 0], [0, 1], [0, 1]])
    found = class_spread(x, np.array([0, 0, 1, 1]))
    assert (found.intra, found.inter) == (1.0, 1.0)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], []])
def test_too_few_items_are_refused(labels):
    with pytest.raises(InputError, match="two classes, and one of two items"):
        class_spread(np.eye(3)[: len(labels)], np.array(labels, int))
    with pytest.raises(InputError, match="2 labels for 3 descriptors"):
        class_spread(np.eye(3), np.array([0, 1]))
