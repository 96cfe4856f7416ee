"""Ranks of matches against sorting every distance, one query after the other."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hardmine.errors import InputError, UnknownNameError
from hardmine.store import near_ranks, within
from hardmine.store.distances import pair_distances
from hardmine.store.near_ranks import near_match_ranks
from hardmine.store.ranking import match_ranks
from hardmine.store.search import nearest


def slow_ranks(x, rows, labels, queries, query_rows, query_labels, ties):
    out = []
    for i in range(len(queries)):
        d = pair_distances(torch.from_numpy(queries[i : i + 1]), torch.from_numpy(x)).tolist()
        order = [j for j in range(len(x)) if query_rows is None or rows[j] != query_rows[i]]
        order.sort(key=lambda j: (d[j], rows[j] if ties == "row" else labels[j] != query_labels[i]))
        out.append([rank for rank, j in enumerate(order, 1) if labels[j] == query_labels[i]])
    return out


def placed(found):
    return [each.rank[a:b].tolist() for each in found for a, b in zip(each.offsets, each.offsets[1:])]


def near(found, count):
    out = [None] * count
    for each in found:
        for q, a, b in zip(each.query, each.offsets, each.offsets[1:]):
            out[q] = each.rank[a:b].tolist()
    return out


def world(seed, kind, n, dim, classes):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim))
    if kind == "grid":
        x = rng.integers(-1, 2, (n, dim))
    elif kind == "copies":
        x[rng.integers(0, n, n // 2)] = x[0]
        x *= rng.uniform(0.1, 10, (n, 1)) if seed % 2 else 1
    elif kind == "close":  # differences at the size of float32's rounding
        x = 1 + x * 1e-7
    return x.astype(np.float32), rng.permutation(1000)[:n], rng.integers(0, classes, n), rng


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["plain", "grid", "copies", "close"]),
    st.integers(2, 70),
    st.sampled_from([1, 2, 3, 17]),
    st.integers(1, 7),
    st.sampled_from(["row", "optimistic"]),
    st.booleans(),
    st.sampled_from([None, 1, 5]),
    st.integers(0, 2**32 - 1),
)
@example("plain", 68, 3, 4, "row", True, 1, 7)  # products of other shapes round otherwise: no query may get lost
def test_both_equal_sorting_everything(kind, n, dim, classes, ties, alone, block, seed):
    x, rows, labels, rng = world(seed, kind, n, dim, classes)
    asked = (x, rows, labels)
    options = {}
    if not alone:
        queries = np.concatenate([x[:3], rng.normal(size=(9, dim)).astype(np.float32)])
        asked = (queries, None, rng.integers(0, classes + 2, len(queries)))
        options = dict(zip(("queries", "query_rows", "query_labels"), asked))
    want = slow_ranks(x, rows, labels, *asked, ties)
    assert placed(match_ranks(x, rows, labels, ties=ties, block=block, **options)) == want
    depth = rng.integers(0, rng.choice([3, 100]), len(want))
    found = near(near_match_ranks(x, rows, labels, depth, ties=ties, block=block, **options), len(want))
    assert found == [[r for r in ranks if r <= d] for ranks, d in zip(want, depth)]


@pytest.mark.parametrize("block", [16, 64, 1024])
@pytest.mark.parametrize("room", [0, 1 << 25])
def test_the_same_whatever_waits_and_whatever_the_blocks(monkeypatch, block, room):
    """Leave-one-out goes through half of the distances while candidates fit, through all of them else."""
    x, rows, labels, _ = world(1, "copies", 150, 8, 9)
    want = placed(match_ranks(x, rows, labels))
    monkeypatch.setattr(near_ranks, "MOST_PENDING", room)
    found = near(near_match_ranks(x, rows, labels, np.full(150, 12), block=block), 150)
    assert found == [[r for r in ranks if r <= 12] for ranks in want]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "grid", "copies", "close"])
@pytest.mark.parametrize("alone", [True, False])
def test_limits_that_were_too_near_change_nothing(monkeypatch, kind, alone, threads):
    """With a guess that is nearly always wrong queries come again, each is answered once, the ranks are the same."""
    x, rows, labels, rng = world(2, kind, 300, 5, 12)
    options = {} if alone else {"queries": x[:90] + x[90:180], "query_labels": labels[:90]}
    count = 300 if alone else 90
    want = placed(match_ranks(x, rows, labels, **options))
    depth = rng.integers(0, 40, count)
    monkeypatch.setattr(within, "STRIDE", 3)
    monkeypatch.setattr(within, "WRONG", 0.9)
    again, before = [], torch.get_num_threads()
    looked = near_ranks._Near._alone
    monkeypatch.setattr(
        near_ranks._Near, "_alone", lambda self, part, surely=False: again.append(surely) or looked(self, part, surely)
    )
    try:
        torch.set_num_threads(threads)
        blocks = list(near_match_ranks(x, rows, labels, depth, block=16, **options))
    finally:
        torch.set_num_threads(before)
    assert any(again) or kind == "close"  # where rounding decides, everything is within the limit
    assert sorted(np.concatenate([each.query for each in blocks])) == list(range(count))
    assert near(blocks, count) == [[r for r in ranks if r <= d] for ranks, d in zip(want, depth)]


def test_the_order_is_that_of_the_neighbour_lists():
    x, rows, labels, _ = world(3, "grid", 200, 6, 5)
    lists = nearest(x, rows, 30).rows
    by_row = dict(zip(rows.tolist(), labels.tolist()))
    listed = [
        [k for k, row in enumerate(some, 1) if by_row[row] == label] for some, label in zip(lists.tolist(), labels)
    ]
    assert near(near_match_ranks(x, rows, labels, np.full(200, 30)), 200) == listed


def test_what_is_refused():
    x, rows, labels, _ = world(0, "plain", 5, 2, 2)
    for ranks in (
        lambda **o: match_ranks(x, rows, labels, **o),
        lambda **o: near_match_ranks(x, rows, labels, rows, **o),
    ):
        with pytest.raises(UnknownNameError, match="Did you mean 'optimistic'"):
            ranks(ties="optimist")
        with pytest.raises(InputError, match="go together"):
            ranks(queries=x)
