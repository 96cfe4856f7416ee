"""Nearest and second nearest against a full matrix, with descriptors that coincide."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.protocols.hpatches.distances import listed, matrix, nearest_two


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(2, 30),
    st.sampled_from([1, 3, 64]),
    st.sampled_from([0, 2, 8]),
    st.floats(0, 1e4),
    st.sampled_from(["l2", "l1"]),
    st.integers(0, 2**32 - 1),
)
def test_screening_loses_nothing(n, m, dim, levels, offset, distance, seed):
    """levels: descriptors are drawn from so many, so that many are equal; offset: far from the origin."""
    rng = np.random.default_rng(seed)
    pool = rng.standard_normal((levels or n + m, dim)) + offset
    picks = rng.integers(levels, size=n + m) if levels else np.arange(n + m)
    a, b = np.split(pool[picks].astype(np.float32), [n])
    nearest, first, second = nearest_two(a, b, distance)
    full = matrix(a, b, distance)
    order = np.argsort(full, axis=1, kind="stable")
    near = full[np.arange(n), nearest]
    assert first == pytest.approx(np.sort(full, axis=1)[:, 0], rel=1e-12, abs=1e-12)
    assert second == pytest.approx(np.sort(full, axis=1)[:, 1], rel=1e-12, abs=1e-12)
    assert near == pytest.approx(full.min(axis=1), rel=1e-12, abs=1e-12)
    if levels:  # equal ones tie to the bit, the first of them is taken
        assert (nearest == order[:, 0]).all()


def test_one_candidate_has_no_second():
    nearest, first, second = nearest_two(np.zeros((2, 3)), np.ones((1, 3)), "l1")
    assert (nearest.tolist(), first.tolist(), second.tolist()) == ([0, 0], [3, 3], [np.inf, np.inf])


def test_listed_distances_in_blocks(monkeypatch):
    monkeypatch.setattr("hardmine.protocols.hpatches.distances.BLOCK", 7)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 4)).astype(np.float32), rng.standard_normal((8, 4)).astype(np.float32)
    a, b = rng.integers(9, size=50), rng.integers(8, size=50)
    for distance in ("l2", "l1"):
        assert listed(x, a, y, b, distance) == pytest.approx(matrix(x, y, distance)[a, b], rel=1e-12)
