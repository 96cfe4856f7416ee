"""The lists of a set for its own items, found with each distance computed once, against those found row by row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.store import by_rows, self_join, within
from hardmine.store.search import nearest, nearest_both
from hardmine.store.sets import prepare

KINDS = ["plain", "grid", "copies", "close", "clusters", "one large class"]


def world(seed, kind, n, dim):
    rng = np.random.default_rng(seed)
    x, labels = rng.normal(size=(n, dim)), rng.integers(0, max(2, n // 5), n)
    if kind == "grid":
        x = rng.integers(-1, 2, (n, dim))
    elif kind == "copies":
        x[rng.integers(0, n, n // 2)] = x[0]
    elif kind == "close":  # differences at the size of float32's rounding
        x = 1 + x * 1e-7
    elif kind == "clusters":
        x = rng.normal(size=(n, dim))[labels] + 0.1 * x
    elif kind == "one large class":
        labels[: n // 2] = 0
        x[labels == 0] *= 0.1
    return x.astype(np.float32), rng.permutation(3 * n)[:n], labels


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)
        np.testing.assert_array_equal(a.distance, b.distance)
        assert (a.ties_cut, a.short) == (b.ties_cut, b.short)


@pytest.fixture
def tiny(monkeypatch):
    """Sets of any size are searched in this way; counts what is left to the rows."""
    left, fill = [], by_rows.fill
    monkeypatch.setattr(self_join, "LEAST_ITEMS", 2)
    monkeypatch.setattr(self_join, "LEAST_SAMPLED", 0)
    monkeypatch.setattr(within, "STRIDE", 3)
    monkeypatch.setattr(self_join, "STRIDE", 3)
    monkeypatch.setattr(within, "BLOCK", 16)

    def counted(sets, which, *rest):
        left.append(len(which))
        fill(sets, which, *rest)

    monkeypatch.setattr(by_rows, "fill", counted)
    return left


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(KINDS), st.integers(40, 150), st.sampled_from([1, 3, 20]), st.integers(1, 4), st.integers(0, 999)
)
def test_the_lists_are_those_found_row_by_row(kind, n, dim, k, seed):
    x, rows, labels = world(seed, kind, n, dim)
    expected = nearest_both(x, rows, labels, k, block=n)
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (self_join, "LEAST_ITEMS", 2),
            (self_join, "LEAST_SAMPLED", 0),
            (self_join, "STRIDE", 3),
            (within, "STRIDE", 3),
            (within, "BLOCK", 16),
        ):
            patch.setattr(module, name, value)
        assert self_join.pays(prepare(x, rows, None, None, labels, None, "euclidean", None), k)
        same(nearest_both(x, rows, labels, k), expected)
        same([nearest(x, rows, k)], expected[:1])
        same([nearest(x, rows, k, labels=labels)], expected[1:])


@pytest.mark.parametrize("threads", [1, 2])
def test_most_lists_are_settled_in_one_pass(tiny, threads):
    x, rows, labels = world(1, "clusters", 900, 16)
    expected = nearest_both(x, rows, labels, 6, block=100)
    tiny.clear()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        same(nearest_both(x, rows, labels, 6), expected)
    finally:
        torch.set_num_threads(before)
    assert len(tiny) == 1
    assert tiny[0] < 90


def test_limits_that_are_too_near_change_nothing(tiny, monkeypatch):
    monkeypatch.setattr(within, "WRONG", 0.95)
    x, rows, labels = world(2, "plain", 300, 8)
    expected = nearest_both(x, rows, labels, 5, block=300)
    tiny.clear()
    same(nearest_both(x, rows, labels, 5), expected)
    assert tiny[0] > 100


def test_too_many_candidates_are_not_kept(tiny, monkeypatch):
    monkeypatch.setattr(self_join, "MOST_WAITING", 100)
    x, rows, labels = world(3, "plain", 300, 8)
    found = nearest_both(x, rows, labels, 5)
    assert tiny == [300]
    same(found, nearest_both(x, rows, labels, 5, block=7))


def test_small_sets_and_foreign_queries_are_searched_row_by_row():
    x, rows, labels = world(4, "plain", 200, 8)
    assert not self_join.pays(prepare(x, rows, None, None, labels, None, "euclidean", None), 5)
    large = np.zeros((1 << 14, 2), np.float32)
    own = np.arange(1 << 14)
    assert self_join.pays(prepare(large, own, None, None, own, None, "euclidean", None), 5)
    assert not self_join.pays(prepare(large, own, large, own, own, own, "euclidean", None), 5)
    assert not self_join.pays(prepare(large, own, None, None, own, None, "euclidean", None), 200)
