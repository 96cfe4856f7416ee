"""Evaluation: public bug reports as tests. The numbers are those of the bug-case log."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.metrics.recall import recall_at
from hardmine.protocols.retrieval_figures import RANKED, Items, retrieve

MEASURED = """
import sys, numpy as np
from hardmine.protocols.retrieval_figures import Items, retrieve

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) << 10

rng = np.random.default_rng(0)
labels = np.arange(12000) // 6
x = (rng.normal(size=(2000, 64))[labels] + rng.normal(size=(12000, 64))).astype(np.float32)
retrieve(Items(x[:600], np.arange(600), labels[:600]), metrics=(sys.argv[1], "r@k"))
before = peak()
retrieve(Items(x, np.arange(12000), labels), metrics=(sys.argv[1], "r@k"))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("metric", ["map@r", "map"])
def test_112_113_no_table_of_all_distances(metric):
    """12,000 x 64 (3 MB): a float32 table would take 576 MB, a list of Python floats 25 MB."""
    done = subprocess.run([sys.executable, "-c", MEASURED, metric], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150 << 20


def test_114_both_recalls_have_names_of_their_own():
    """Classes of 3, K = 8: any hit is 1 where one match is found, the fraction counts both."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 3)
    x = rng.normal(size=(30, 2)).astype(np.float32)
    found = retrieve(Items(x, np.arange(30), labels), ks=(8,), metrics=("r@k", "recall-fraction")).values
    d = np.square(x[:, None] - x).sum(2)
    np.fill_diagonal(d, np.inf)
    hits = (labels[d.argsort(1)[:, :8]] == labels[:, None]).sum(1)
    assert found["r@8"].mean() == (hits > 0).mean()
    assert found["recall-fraction@8"].mean() == pytest.approx((hits / 2).mean())
    assert found["r@8"].mean() != found["recall-fraction@8"].mean()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_116_a_lone_query_counts_in_no_metric(seed):
    """Adding classes of one item, far away, changes no figure, whatever the metric and however it is found."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 20)
    labels[:2] = 0
    x = rng.normal(size=(20, 3)).astype(np.float32)
    far = np.concatenate([x, 100 + 10 * np.arange(15, dtype=np.float32).reshape(5, 3)])
    alone = np.concatenate([labels, [90, 91, 92, 93, 94]])
    for metrics in (RANKED, RANKED[:3]):
        want = retrieve(Items(x, np.arange(20), labels), ks=(1, 4), metrics=metrics)
        got = retrieve(Items(far, np.arange(25), alone), ks=(1, 4), metrics=metrics)
        assert got.lone == want.lone + 5
        for name, value in want.values.items():
            assert np.array_equal(got.values[name], value), name
        assert all(len(v) == len(got.query) and np.isfinite(v).all() for v in got.values.values())


def test_121_the_same_digits_on_any_number_of_threads_and_for_any_share_of_the_queries():
    """What three processes find, each for its share, put together is what one finds."""
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(60), 5)
    x = (rng.normal(size=(60, 16))[labels] + rng.normal(size=(300, 16))).astype(np.float32)
    every, threads = Items(x, np.arange(300), labels), torch.get_num_threads()
    whole = retrieve(every, metrics=RANKED[:3], ks=(1, 5)).values
    shares = [
        Items(x[part], np.flatnonzero(part), labels[part]) for part in (np.arange(300) % 3 == i for i in range(3))
    ]
    try:
        torch.set_num_threads(1)
        parts = [retrieve(every, share, metrics=RANKED[:3], ks=(1, 5)).values for share in shares]
    finally:
        torch.set_num_threads(threads)
    for name, value in whole.items():
        together = np.empty(300)
        for i, part in enumerate(parts):
            together[i::3] = part[name]
        assert np.array_equal(together, value), name


def test_68_missing_neighbours_are_nobody():
    assert recall_at(np.array([[-1, -1], [0, -1]]), np.array([0, 0]), (1, 2)) == {1: 0.5, 2: 0.5}


def reidentified(seed=2, people=40, each=6):
    """A gallery seen by 6 cameras, and queries of the same people."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(people), each)
    centre = rng.normal(size=(people, 8))
    x = (centre[labels] + rng.normal(size=(len(labels), 8))).astype(np.float32)
    camera = rng.integers(1, 7, len(labels))
    q = np.arange(0, len(labels), 4)
    gallery = Items(x, np.arange(len(x)), labels, camera)
    queries = Items(x[q] + np.float32(0.1), 1000 + q, labels[q], camera[q])
    return gallery, queries


def test_116_a_query_that_only_its_own_camera_saw_counts_in_no_figure():
    gallery, queries = reidentified()
    metrics = ("r@k", "map", "map-trapezoid")
    want = retrieve(gallery, queries, metrics=metrics)
    extra = np.full((2, 8), 40, np.float32)
    with_two = Items(
        np.concatenate([queries.descriptors, extra]),
        np.append(queries.rows, [2000, 2001]),
        np.append(queries.labels, [90, 91]),  # 90 is in the gallery by the same camera alone, 91 not at all
        np.append(queries.groups, [3, 3]),
    )
    of_90 = Items(
        np.concatenate([gallery.descriptors, extra[:1]]),
        np.append(gallery.rows, 900),
        np.append(gallery.labels, 90),
        np.append(gallery.groups, 3),
    )
    got = retrieve(of_90, with_two, metrics=metrics)
    assert got.lone == want.lone + 2
    for name, values in want.values.items():
        assert np.array_equal(got.values[name], values), name


def test_121_shares_of_the_queries_give_the_same_digits_where_cameras_are_left_out():
    gallery, queries = reidentified()
    metrics = ("r@k", "map", "map-trapezoid")
    whole = retrieve(gallery, queries, metrics=metrics, ks=(1, 5))
    parts = [np.arange(i, len(queries.rows), 3) for i in range(3)]
    for name, values in whole.values.items():
        together = np.full(len(queries.rows), np.nan)
        for part in parts:
            share = Items(queries.descriptors[part], queries.rows[part], queries.labels[part], queries.groups[part])
            found = retrieve(gallery, share, metrics=metrics, ks=(1, 5))
            together[part[found.query]] = found.values[name]
        assert np.array_equal(together[whole.query], values), name
