"""Lists through cells that are the classes: against loops, against the exact lists, and where they are no help."""

import threading

import numpy as np
import pytest
import torch

from hardmine.errors import InputError
from hardmine.store import class_cells
from hardmine.store.approximate import TARGET, approximate_both
from hardmine.store.class_cells import AIM, CLASSES, ClassCells
from hardmine.store.distances import pair_distances
from hardmine.store.index import build_index
from hardmine.store.search import nearest_both


def uneven(sizes=(1, 30, 7, 150, 2, 1, 64, 65, *[5] * 40), dim=6, seed=0, spread=0.4):
    """Clusters of these sizes, items in any order, rows and labels with gaps."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.permutation(3 * len(sizes))[: len(sizes)], sizes)
    x = np.repeat(rng.standard_normal((len(sizes), dim)), sizes, 0)
    x += spread * rng.standard_normal(x.shape)
    order = rng.permutation(len(x))
    rows = rng.permutation(2 * len(x))[: len(x)]
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)[order], rows, labels[order]


def by_loops(x, rows, labels, k, compared):
    """Both lists of rows: the own class, and the items of the cells with the nearest centroids, sorted."""
    items = sorted(range(len(x)), key=lambda i: (labels[i], rows[i]))
    cells, lists = [], ([], [])
    for label in sorted(set(labels.tolist())):
        own = [i for i in items if labels[i] == label]
        cells += [own[start : start + 64] for start in range(0, len(own), 64)]
    centroid = [x[cell].astype(float).mean(0) for cell in cells]
    distance = pair_distances(torch.from_numpy(x)[:, None], torch.from_numpy(x)[None]).numpy()
    for i in range(len(x)):
        mine = next(c for c in range(len(cells)) if i in cells[c])
        far = [c for c in range(len(cells)) if labels[cells[c][0]] != labels[i]]
        far.sort(key=lambda c: np.linalg.norm(centroid[c] - centroid[mine]))
        others = [j for c in far[:compared] for j in cells[c]]
        own = [j for j in items if labels[j] == labels[i] and j != i]
        for each, found in zip(lists, (own + others, others)):
            found = sorted((distance[i, j], rows[j]) for j in found)[:k]
            each.append([row for _, row in found] + [-1] * (k - len(found)))
    return [np.array(each) for each in lists]


@pytest.mark.parametrize("compared", [1, 3, 12])
def test_candidates_equal_loops(compared):
    x, rows, labels = uneven()
    cells = ClassCells(x, rows, labels, 9)
    cells.compared = compared
    expected = by_loops(x, rows, labels, 9, compared)
    items = np.concatenate(cells.blocks())
    assert sorted(items.tolist()) == list(range(len(x)))
    for found, true in zip(cells.listed(items), expected):
        np.testing.assert_array_equal(found[0][:, :9], true[items])
    some = np.array([400, 3, 77, 4])  # any items in any order
    for found, true in zip(cells.listed(some), expected):
        np.testing.assert_array_equal(found[0][:, :9], true[some])


def test_with_every_cell_compared_the_lists_are_the_exact_ones(monkeypatch):
    monkeypatch.setattr(class_cells, "MOST_COMPARED", 1)
    monkeypatch.setattr(class_cells, "AIM", 1.0)
    x, rows, labels = uneven()
    *found, record, _ = approximate_both(x, rows, labels, 12, CLASSES)
    assert (record["recall"], record["recall_other"], record["completed"]) == (1, 1, 0)
    for lists, true in zip(found, nearest_both(x, rows, labels, 12)):
        np.testing.assert_array_equal(lists.rows, true.rows)
        np.testing.assert_array_equal(lists.distance, true.distance)
        assert (lists.ties_cut, lists.short) == (true.ties_cut, true.short)


def test_no_more_cells_are_compared_than_the_aim_needs():
    x, rows, labels = uneven([6] * 160, dim=4, spread=0.2)
    cells, sample = ClassCells(x, rows, labels, 12), np.arange(len(x))
    exact = nearest_both(x, rows, labels, 12)
    cells.settle(sample, exact)
    assert 5 < cells.compared < cells.most

    def lowest(compared):
        cells.compared = compared
        found = cells.listed(sample)
        return min(np.mean([np.isin(a, b).mean() for a, b in zip(t.rows, f[0][:, :12])]) for t, f in zip(exact, found))

    settled = cells.compared
    assert lowest(settled) >= AIM > lowest(settled - 1)


def test_the_record_says_which_cells_were_compared():
    x, rows, labels = uneven([6] * 160, dim=4, spread=0.2)
    *_, record, messages = approximate_both(x, rows, labels, 12, CLASSES)
    assert record["knn_index"] == CLASSES
    assert record["search"].keys() == {"nprobe", "cells", "largest_cell"}
    assert (record["search"]["cells"], record["search"]["largest_cell"]) == (160, 6)
    assert min(record["recall"], record["recall_other"]) >= TARGET
    assert len(messages) == 1


def test_the_same_lists_on_any_number_of_threads_which_stays_what_it_was():
    threads, found, later = torch.get_num_threads(), [], []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(approximate_both(*uneven(), 5, CLASSES))
            assert torch.get_num_threads() == count
            thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
            thread.start()
            thread.join()
    finally:
        torch.set_num_threads(threads)
    assert later == [1, 2, 3]
    for other in found[1:]:
        np.testing.assert_array_equal(other[0].rows, found[0][0].rows)
        np.testing.assert_array_equal(other[1].rows, found[0][1].rows)
        assert other[2] == found[0][2]


def test_labels_that_are_no_clusters_are_said_to_be_none():
    x, rows, labels = uneven([5] * 240, dim=32)
    labels = np.random.default_rng(1).permutation(labels)
    _, others, record, messages = approximate_both(x, rows, labels, 12, CLASSES)
    assert record["recall_other"] < TARGET
    assert record["search"]["nprobe"] == 60  # a quarter
    assert "these classes are no cells" in messages[1]
    assert (others.rows >= 0).all()


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [([1] * 50 + [2] * 10, "60 classes have fewer than two items"), ([90, 30], "62% of all pairs are inside classes")],
)
def test_classes_that_are_no_cells_are_searched_exactly_and_it_is_said(sizes, reason):
    x, rows, labels = uneven(sizes)
    everything, _, record, messages = approximate_both(x, rows, labels, 5, CLASSES)
    assert record == {"knn_index": "Flat"}
    assert reason in messages[0]
    np.testing.assert_array_equal(everything.rows, nearest_both(x, rows, labels, 5)[0].rows)


def test_a_set_without_items_has_no_lists():
    everything, others, record, _ = approximate_both(np.empty((0, 4), np.float32), np.empty(0), np.empty(0), 5, CLASSES)
    assert everything.rows.shape == others.rows.shape == (0, 5)
    assert record == {"knn_index": "Flat"}


def test_lists_that_few_cells_do_not_fill_are_completed():
    x, rows, labels = uneven([3] * 20)
    *found, record, _ = approximate_both(x, rows, labels, 40, CLASSES)
    assert record["completed"] > 0
    for lists, true in zip(found, nearest_both(x, rows, labels, 40)):
        np.testing.assert_array_equal(lists.rows, true.rows)


def test_it_is_no_index_to_keep():
    with pytest.raises(InputError, match="only finds neighbour lists"):
        build_index(*uneven()[:2], CLASSES)
