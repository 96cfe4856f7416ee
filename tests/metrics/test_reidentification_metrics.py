"""CMC and both average precisions where each query's ranking leaves items out, against the obvious loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardmine.errors import InputError
from hardmine.protocols.retrieval_figures import Items, retrieve
from hardmine.store.ranking import match_ranks


def slow_cmc_and_map(gallery, queries, ks, ties):
    """For each query with a match: what is kept in Python's sorted order, and the published programs' counts on it."""
    figures, lone, dropped = {}, 0, 0
    for x, row, label, group in zip(queries.descriptors, queries.rows, queries.labels, queries.groups):
        kept = []
        for y, other, theirs, theirs_group in zip(gallery.descriptors, gallery.rows, gallery.labels, gallery.groups):
            if other == row:
                continue
            if theirs == label and theirs_group == group:
                dropped += 1
                continue
            distance = sum((float(a) - float(b)) ** 2 for a, b in zip(x, y))
            kept.append((distance, int(other) if ties == "row" else int(theirs != label), bool(theirs == label)))
        hits = [hit for _, _, hit in sorted(kept)]
        if not any(hits):
            lone += 1
            continue
        for k in ks:
            figures.setdefault(f"r@{k}", []).append(float(any(hits[:k])))
        found, precisions, area, old_recall, old_precision = 0, [], 0.0, 0.0, 1.0
        for place, hit in enumerate(hits, 1):
            found += hit
            precisions += [found / place] if hit else []
            recall = found / sum(hits)
            area += (recall - old_recall) * (old_precision + found / place) / 2
            old_recall, old_precision = recall, found / place
        figures.setdefault("map", []).append(sum(precisions) / len(precisions))
        figures.setdefault("map-trapezoid", []).append(area)
    return figures, lone, dropped


def draw(seed, shared):
    """A gallery and queries on a coarse grid: many ties, copies, people of one camera, queries without a match; with
    `shared`, some rows are in both."""
    rng = np.random.default_rng(seed)
    sides = []
    for count, first in ((30, 0), (12, 20 if shared else 100)):
        x = rng.integers(-2, 3, (count, 2)).astype(np.float32)
        x[rng.integers(0, count, 4)] = 0
        rows = np.arange(first, first + count) * 3
        sides.append([x, rows, rng.integers(0, 6, count), rng.integers(0, 3, count)])
    if shared:  # a row is one item
        for field in (0, 2, 3):
            sides[1][field][:10] = sides[0][field][20:]
    return Items(*sides[0]), Items(*sides[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(["row", "optimistic"]))
def test_every_figure_equals_its_loop(seed, shared, ties):
    gallery, queries = draw(seed, shared)
    ks = (1, 2, 5, 40)
    want, lone, dropped = slow_cmc_and_map(gallery, queries, ks, ties)
    if not want:
        return
    for metrics in (("r@k", "map", "map-trapezoid"), ("r@k",)):
        found = retrieve(gallery, queries, ks=ks, metrics=metrics, ties=ties)
        assert (found.lone, int(found.left_out.sum())) == (lone, dropped)
        for name, values in found.values.items():
            assert values.tolist() == pytest.approx(want[name], abs=1e-12), name


def test_leave_one_out_with_groups():
    gallery, _ = draw(1, False)
    want, lone, dropped = slow_cmc_and_map(gallery, gallery, (1, 3), "row")
    found = retrieve(gallery, ks=(1, 3), metrics=("r@k", "map", "map-trapezoid"))
    assert (found.lone, int(found.left_out.sum())) == (lone, dropped)
    for name, values in found.values.items():
        assert values.tolist() == pytest.approx(want[name], abs=1e-12), name


def test_g7_by_hand():
    """Specs 13, G7, without a store."""
    x = np.array([[0.1], [0.2], [0.3], [0.4], [0.5], [0.6]])
    gallery = Items(x, np.arange(6), np.array([1, 2, 1, 0, 1, 2]), np.array([0, 1, 1, 2, 3, 0]))
    query = Items(np.zeros((1, 1)), np.array([9]), np.array([1]), np.array([0]))
    found = retrieve(gallery, query, ks=range(1, 6), metrics=("r@k", "map", "map-trapezoid")).values
    assert [float(found[f"r@{k}"][0]) for k in range(1, 6)] == [0, 1, 1, 1, 1]
    assert found["map"][0] == pytest.approx(0.5)
    assert found["map-trapezoid"][0] == pytest.approx(0.333333333)


def test_groups_that_do_not_fit_are_refused():
    x, rows, labels = np.zeros((4, 2)), np.arange(4), np.zeros(4, int)
    with pytest.raises(InputError, match="one of them is missing"):
        match_ranks(x, rows, labels, queries=x, query_rows=rows, query_labels=labels, groups=labels)
    with pytest.raises(InputError, match=r"groups have the shapes \(3,\) and \(3,\)"):
        match_ranks(x, rows, labels, groups=np.zeros(3, int))
    with pytest.raises(InputError, match="labels and groups go together"):
        Items(x, rows, labels, np.zeros(3, int))
    everyone = Items(x, rows, labels, labels)
    with pytest.raises(InputError, match="but for those left out"):
        retrieve(everyone)
