"""Recall, average precision, NMI and F1 against the obvious loops, and against pytorch-metric-learning."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.errors import InputError
from hardmine.metrics.average_precision import (
    average_precision,
    average_precision_at_r,
    trapezoid_average_precision,
)
from hardmine.metrics.clustering import k_means, nmi, pairwise_f1
from hardmine.metrics.ranks import Ranks, ranks_of_lists
from hardmine.metrics.recall import any_hit, recall_at, recall_fraction
from hardmine.protocols.retrieval_figures import RANKED, Items, retrieve


def slow_order(x, i, ties, labels):
    """All other items, nearest first, by Python's sort of squared distances in float64."""

    def key(j):
        d = sum((float(a) - float(b)) ** 2 for a, b in zip(x[i], x[j]))
        return (d, j) if ties == "row" else (d, labels[j] != labels[i])

    return sorted((j for j in range(len(x)) if j != i), key=key)


def slow_trapezoid(hits):
    """Market-1501's compute_AP, step by step down the ranking."""
    area, old_recall, old_precision, found = 0.0, 0.0, 1.0, 0
    for place, hit in enumerate(hits, 1):
        found += hit
        recall, precision = found / sum(hits), found / place
        area += (recall - old_recall) * (old_precision + precision) / 2
        old_recall, old_precision = recall, precision
    return area


def slow_figures(x, labels, ks, ties="row"):
    figures, lone = {}, 0
    for i in range(len(x)):
        hits = [bool(labels[j] == labels[i]) for j in slow_order(x, i, ties, labels)]
        r = sum(hits)
        if r == 0:
            lone += 1
            continue
        precision = [sum(hits[: n + 1]) / (n + 1) * hits[n] for n in range(len(hits))]
        mine = {"map": sum(precision) / r, "map@r": sum(precision[:r]) / r, "map-trapezoid": slow_trapezoid(hits)}
        for k in ks:
            mine |= {f"r@{k}": float(any(hits[:k])), f"recall-fraction@{k}": sum(hits[:k]) / r}
        for name, value in mine.items():
            figures.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in figures.items()}, lone


def world(seed, norms=False):
    """Descriptors on a coarse grid (many equal and many tied), some of them repeated, and classes of 1 to 9."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(9), np.arange(1, 10)))
    x = rng.integers(-2, 3, (len(labels), 3)) + 2.0 * (labels[:, None] == np.arange(3))
    x[rng.integers(0, len(x), 8)] = x[0]
    if norms:
        x = x * rng.choice([0.125, 1, 8], (len(x), 1))  # exact in float32: the loops see the same ties
    return x.astype(np.float32), labels


@pytest.mark.parametrize("ties", ["row", "optimistic"])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_119_every_metric_equals_its_loop_on_descriptors_of_any_norm(seed, norms, ties):
    x, labels = world(seed, norms)
    ks = (1, 2, 5, 60)
    want, lone = slow_figures(x, labels, ks, ties)
    items = Items(x, np.arange(len(x)) * 3, labels)
    for metrics in (RANKED, RANKED[:3], ("r@k",)):
        found = retrieve(items, ks=ks, metrics=metrics, ties=ties)
        assert found.lone == lone == 1
        for name, value in found.values.items():
            assert value.mean() == pytest.approx(want[name], abs=1e-12), name


def test_retrieval_equals_accuracy_calculator_where_definitions_agree():
    """Leave-one-out and query/gallery, classes of 1 to 9, repeated descriptors. With equal distances the order is free,
    so descriptors differ here, but for copies within a class, whose order does not matter."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    rng = np.random.default_rng(5)
    labels = rng.permutation(np.repeat(np.arange(18), np.tile(np.arange(1, 10), 2)))
    x = (rng.normal(size=(18, 8))[labels] + rng.normal(size=(90, 8))).astype(np.float32)
    for c in (4, 8):  # copies within a class
        x[np.flatnonzero(labels == c)[:2]] = x[np.flatnonzero(labels == c)[0]]
    every = Items(x, np.arange(90), labels)
    part = Items(x[:30], np.arange(30), labels[:30]), Items(x[30:], np.arange(30, 90), labels[30:])
    wanted = ("precision_at_1", "mean_average_precision_at_r", "mean_average_precision")
    for queries, gallery in ((None, every), part):
        theirs = AccuracyCalculator(include=wanted, k=None, device=torch.device("cpu"))
        args = (every.descriptors, labels) if queries is None else (x[:30], labels[:30], x[30:], labels[30:])
        want = theirs.get_accuracy(*args)
        got = {name: v.mean() for name, v in retrieve(gallery, queries, metrics=RANKED).values.items()}
        assert got["r@1"] == pytest.approx(want["precision_at_1"], abs=1e-12)
        assert got["map@r"] == pytest.approx(want["mean_average_precision_at_r"], abs=1e-12)
        assert got["map"] == pytest.approx(want["mean_average_precision"], abs=1e-12)
    clusters = k_means(x, 18, seed=0)
    theirs = AccuracyCalculator(include=("NMI",), kmeans_func=lambda x, k: torch.from_numpy(clusters))
    assert nmi(clusters, labels) == pytest.approx(theirs.get_accuracy(x, labels)["NMI"], abs=1e-12)


def test_a_copy_in_front_of_self_changes_nothing_here():
    """Where AccuracyCalculator and faiss drop the first of K + 1 neighbours, a copy with a lower row is dropped instead
    of the query itself; here a query is left out by its row."""
    x = np.zeros((4, 2), np.float32)
    x[2:] = [[3, 0], [3.5, 0]]
    found = retrieve(Items(x, np.arange(4), np.array([0, 1, 0, 1])), ks=(1, 2, 3))
    # row 1 (label 1): nearest its copy row 0 (label 0), then row 2, then row 3
    assert found.values["r@1"].tolist() == [0, 0, 0, 0]
    assert found.first.tolist() == [2, 3, 2, 3]


def test_g4_ties():
    """Specs 13: 70 degrees is 20 from a match and 20 from another label. By row 4/6, counted optimistically 5/6."""
    x = np.array([[1, 0], [1, 0], [5, 0], [7, 0], [9, 0], [14, 0]], np.float32)
    x[:2, 0] = 0, 2  # 0, 20, 50, 70, 90, 140 degrees as places on a line: the tie is exact
    items = Items(x, np.arange(6), np.array([0, 0, 0, 1, 1, 1]))
    assert retrieve(items, metrics=("r@k",)).values["r@1"].mean() == pytest.approx(4 / 6)
    assert retrieve(items, metrics=("r@k",), ties="optimistic").values["r@1"].mean() == pytest.approx(5 / 6)
    assert retrieve(items, metrics=("map", "r@k"), ties="optimistic").values["r@1"].mean() == pytest.approx(5 / 6)
    angle = np.radians([0, 20, 50, 70, 90, 140])
    unit = Items(np.stack([np.cos(angle), np.sin(angle)], 1), np.arange(6), items.labels)
    found = retrieve(unit, ks=(1, 2, 4), metrics=("r@k",)).values
    assert [found[f"r@{k}"].mean() for k in (1, 2, 4)] == pytest.approx([4 / 6, 1, 1])


def test_recall_of_lists_and_of_a_fraction():
    found = np.array([[1, 0, 0], [1, 1, -1], [2, 2, 2]])
    labels = np.array([0, 1, 0])
    assert recall_at(found, labels, (1, 2, 3)) == {1: 1 / 3, 2: 2 / 3, 3: 2 / 3}
    ranks = ranks_of_lists(found, labels)
    assert ranks.rank.tolist() == [2, 3, 1, 2]
    assert ranks.first.tolist() == [2, 1, 4]
    assert recall_fraction(ranks, np.array([4, 2, 1]), 2).tolist() == [0.25, 1, 0]


def test_average_precision_by_hand():
    ranks = Ranks(np.array([1, 3, 6, 2]), np.array([0, 3, 4]))
    assert average_precision(ranks, np.array([3, 1])).tolist() == pytest.approx([(1 + 2 / 3 + 3 / 6) / 3, 1 / 2])
    assert average_precision_at_r(ranks, np.array([3, 1])).tolist() == pytest.approx([(1 + 2 / 3) / 3, 0])
    area = [(1 + (1 / 2 + 2 / 3) / 2 + (2 / 5 + 3 / 6) / 2) / 3, (0 + 1 / 2) / 2]
    assert trapezoid_average_precision(ranks, np.array([3, 1])).tolist() == pytest.approx(area)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recall_at(np.zeros((3, 2), int), np.zeros(3, int), [3]), "counting at 3 .* these have 2"),
        (lambda: recall_at(np.zeros((3, 2), int), np.zeros(3, int), [0]), "counting at 0"),
        (lambda: recall_at(np.zeros((0, 2), int), np.zeros(0, int), [1]), "no query"),
        (lambda: recall_at(np.zeros((3, 2), int), np.zeros(4, int), [1]), r"\(3, 2\) for \(4,\)"),
        (lambda: recall_fraction(one_list(), np.array([0]), 1), "1 or more"),
        (lambda: recall_fraction(one_list(), np.array([1]), 1), "query 0 has 2 matches in its list, 1 in the database"),
        (lambda: average_precision(one_list(), np.array([3])), "ranks of 1 matches are not listed"),
        (lambda: trapezoid_average_precision(one_list(), np.array([3])), "ranks of 1 matches are not listed"),
        (lambda: average_precision_at_r(one_list(), np.array([4])), "query 0 has 4, its ranks go to 3"),
        (lambda: any_hit(one_list(), 4), "counting at 4"),
        (lambda: k_means(np.zeros((3, 2)), 4, 0), "3 descriptors cannot form 4 clusters"),
        (lambda: nmi(np.zeros(3, int), np.zeros(2, int)), r"\(3,\) clusters for \(2,\) labels"),
    ],
)
def test_what_has_no_figure_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def one_list():
    return ranks_of_lists(np.array([[0, 1, 0]]), np.array([0]))


def slow_nmi(clusters, labels):
    n = len(labels)
    cells = {}
    for pair in zip(clusters.tolist(), labels.tolist()):
        cells[pair] = cells.get(pair, 0) + 1

    def entropy(values):
        return -sum(c / n * math.log(c / n) for c in (values.tolist().count(v) for v in set(values.tolist())))

    def side(values, v):
        return values.tolist().count(v) / n

    mutual = sum(m / n * math.log(m / n / side(clusters, c) / side(labels, y)) for (c, y), m in cells.items())
    total = entropy(clusters) + entropy(labels)
    return 2 * mutual / total if total else 1.0


def slow_f1(clusters, labels):
    together = [(clusters[i] == clusters[j], labels[i] == labels[j]) for i, j in combinations(range(len(labels)), 2)]
    right = sum(c and y for c, y in together)
    found, there = sum(c for c, _ in together), sum(y for _, y in together)
    if not right:
        return 0.0
    precision, recall = right / found, right / there
    return 2 * precision * recall / (precision + recall)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_nmi_and_f1_equal_their_loops(n, many, few, seed):
    rng = np.random.default_rng(seed)
    clusters, labels = rng.integers(0, many, n), rng.integers(0, few, n)
    assert nmi(clusters, labels) == pytest.approx(slow_nmi(clusters, labels), abs=1e-9)
    assert pairwise_f1(clusters, labels) == pytest.approx(slow_f1(clusters, labels), abs=1e-12)


def test_77_clusters_follow_from_the_seed_and_sit_at_means_that_are_not_normalised():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 25)
    x = rng.normal(size=(4, 6))[labels] * np.array([1, 3, 10, 30])[labels, None] + 0.1 * rng.normal(size=(100, 6))
    first = k_means(x, 4, seed=3)
    assert np.array_equal(first, k_means(x, 4, seed=3))
    assert any(not np.array_equal(first, k_means(x, 4, seed=s)) for s in range(4, 10))
    centre = np.stack([x[first == c].mean(0) for c in range(4)])
    nearest_centre = np.square(x[:, None] - centre).sum(2).argmin(1)
    assert np.array_equal(nearest_centre, first)


def test_fewer_distinct_descriptors_than_clusters():
    cluster = k_means(np.repeat(np.eye(2), 5, axis=0), 4, seed=0)
    assert nmi(cluster, np.repeat([0, 1], 5)) > 0
    assert len(np.unique(cluster)) <= 4
