"""Exact search against loops, its independence of the block size, and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.errors import InputError, NumericalError, UnknownNameError
from hardmine.store.by_rows import room, smallest
from hardmine.store.distances import as_descriptors, pair_distances
from hardmine.store.search import nearest, nearest_both


def tree_distance(a, b):
    """float32 squares added in the documented order, one pair, plain loops."""
    squares = [np.float32(np.float32(x - y) * np.float32(x - y)) for x, y in zip(a, b)]
    while len(squares) > 1:
        half = (len(squares) + 1) // 2
        squares = [squares[i] + squares[half + i] if half + i < len(squares) else squares[i] for i in range(half)]
    return np.sqrt(squares[0])


def by_loops(base, rows, k, queries, query_rows=None, labels=None, query_labels=None):
    """Every distance, sorted by (distance, row)."""
    lists, distances, ties = [], [], 0
    for q in range(len(queries)):
        found = []
        for j in range(len(base)):
            if query_rows is not None and rows[j] == query_rows[q]:
                continue
            if labels is not None and labels[j] == query_labels[q]:
                continue
            found.append((tree_distance(queries[q], base[j]), rows[j]))
        found.sort()
        ties += len(found) > k and found[k - 1][0] == found[k][0]
        found = (found + [(np.nan, -1)] * k)[:k]
        lists.append([row for _, row in found])
        distances.append([distance for distance, _ in found])
    return np.array(lists), np.array(distances, np.float32), ties


def same(found, expected):
    np.testing.assert_array_equal(found.rows, expected[0])
    np.testing.assert_array_equal(found.distance, expected[1])
    assert found.ties_cut == expected[2]
    assert found.short == (expected[0][:, -1] < 0).sum()


@given(
    st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.sampled_from([1, 2, 4, 1000]), st.integers(0, 2**32)
)
@settings(max_examples=40, deadline=None)
def test_lists_equal_loops_with_ties_and_any_block(count, dim, k, grid, seed):
    generator = np.random.default_rng(seed)
    base = (generator.integers(-grid, grid + 1, (count, dim)) / np.float32(grid)).astype(np.float32)
    rows = generator.permutation(3 * count)[:count]
    labels = generator.integers(0, 4, count)
    for block in (1, 7, None):
        everything, others = nearest_both(base, rows, labels, k, block=block)
        same(everything, by_loops(base, rows, k, base, rows))
        same(others, by_loops(base, rows, k, base, rows, labels, labels))


def test_duplicates_beyond_the_candidates_are_listed_by_row():
    base = np.repeat(np.eye(4, dtype=np.float32), 30, axis=0)  # 29 equal neighbours, k + 16 candidates hold 19
    rows = np.random.default_rng(0).permutation(120)
    same(nearest(base, rows, 3), by_loops(base, rows, 3, base, rows))
    labels = np.arange(120) % 2
    same(nearest(base, rows, 3, labels=labels), by_loops(base, rows, 3, base, rows, labels, labels))


@pytest.mark.parametrize("offset", [0, 1000])
def test_large_common_offset_does_not_disturb_the_lists(offset):
    generator = np.random.default_rng(1)
    base = (generator.standard_normal((200, 5)) + offset).astype(np.float32)  # products lose most digits of distances
    same(nearest(base, np.arange(200), 4, block=64), by_loops(base, np.arange(200), 4, base, np.arange(200)))


def test_queries_apart_from_the_database():
    generator = np.random.default_rng(2)
    base, queries = generator.standard_normal((2, 30, 8)).astype(np.float32)
    rows, query_rows = np.arange(30), np.arange(25, 55)
    labels, query_labels = np.arange(30) // 3, np.arange(30) // 3
    same(nearest(base, rows, 4, queries=queries), by_loops(base, rows, 4, queries))
    same(nearest(base, rows, 4, queries=queries, query_rows=query_rows), by_loops(base, rows, 4, queries, query_rows))
    found = nearest_both(base, rows, labels, 4, queries=queries, query_labels=query_labels)
    same(found[0], by_loops(base, rows, 4, queries))
    same(found[1], by_loops(base, rows, 4, queries, None, labels, query_labels))


def test_long_lines_are_searched_by_groups():
    values = torch.from_numpy(np.random.default_rng(3).permutation(64 * 90 + 17).astype(np.float32))[None]
    found, column = smallest(values, 20)
    assert found[0].tolist() == list(range(20))
    assert values[0, column[0]].tolist() == list(range(20))
    values[0, -1] = -1  # beyond the last whole group
    assert smallest(values, 20)[1][0, 0] == values.shape[1] - 1


def test_lines_of_almost_nothing_name_no_column_beyond_them():
    values = room(2, 64 * 90 + 17)
    values[:, : 64 * 90 + 17] = torch.inf
    values[1, 64 * 90 + 3] = 5
    found, column = smallest(values, 20, 64 * 90 + 17)
    assert column.max() <= 64 * 90 + 16
    assert column[1, 0] == 64 * 90 + 3
    assert found.isfinite().sum() == 1


def test_k_beyond_the_database_is_padded_and_said():
    found = nearest(np.eye(3, dtype=np.float32), np.arange(3), 5)
    assert found.rows.tolist() == [[1, 2, -1, -1, -1], [0, 2, -1, -1, -1], [0, 1, -1, -1, -1]]
    assert found.short == 3
    assert np.isnan(found.distance[:, 2:]).all()
    alone = nearest(np.eye(3, dtype=np.float32), np.arange(3), 2, labels=np.zeros(3, int))
    assert (alone.rows == -1).all()


@given(st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_pair_distances_against_float64_and_the_tree(dim, seed):
    generator = np.random.default_rng(seed)
    a, b = generator.standard_normal((2, 6, dim)).astype(np.float32)
    b[0] = a[0]
    found = pair_distances(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    assert found[0] == 0
    np.testing.assert_allclose(found, np.linalg.norm(a.astype(float) - b, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(found, [tree_distance(x, y) for x, y in zip(a, b)])
    np.testing.assert_array_equal(found, pair_distances(torch.from_numpy(b), torch.from_numpy(a)).numpy())
    one = pair_distances(torch.from_numpy(a[3:4]), torch.from_numpy(b[3:4])).numpy()
    assert one[0] == found[3]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64])
def test_any_dtype_and_layout_is_converted_once(dtype):
    values = np.random.default_rng(4).integers(-3, 4, (5, 9)).astype(dtype).T  # F71: a transposed view
    found = as_descriptors(values)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, values.astype(np.float32))
    same(nearest(values, np.arange(9), 2), by_loops(found, np.arange(9), 2, found, np.arange(9)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_rows_that_are_not_finite_are_refused_by_name(bad):
    values = np.ones((9, 4), np.float32)
    values[[2, 5], 1] = bad
    with pytest.raises(NumericalError, match=r"2 of 9 .*rows 102, 105"):
        nearest(values, np.arange(100, 109), 2)


def test_bad_arguments():
    base = np.eye(4, dtype=np.float32)
    with pytest.raises(InputError, match="twice"):
        nearest(base, np.array([0, 1, 1, 2]), 1)
    with pytest.raises(InputError, match="rows has shape"):
        nearest(base, np.arange(3), 1)
    with pytest.raises(InputError, match="dimensions"):
        nearest(base, np.arange(4), 1, queries=np.ones((2, 3)))
    with pytest.raises(InputError, match="k must be"):
        nearest(base, np.arange(4), 0)
    with pytest.raises(InputError, match="go together"):
        nearest(base, np.arange(4), 1, queries=base, labels=np.arange(4))
    with pytest.raises(InputError, match=r"shape \(N, D\)"):
        nearest(np.ones(4), np.arange(4), 1)
    with pytest.raises(UnknownNameError, match="euclidean"):
        nearest(base, np.arange(4), 1, metric="euclid")
