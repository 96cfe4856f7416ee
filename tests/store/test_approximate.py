"""Lists through an index: distances exact, recall as recorded, no -1 where there is a neighbour."""

import numpy as np
import pytest
import torch

from hardmine.errors import InputError
from hardmine.store import approximate
from hardmine.store.approximate import TARGET, approximate_both
from hardmine.store.search import nearest_both

pytest.importorskip("faiss")


def clusters(classes=150, size=8, dim=12, seed=0):
    generator = np.random.default_rng(seed)
    centre = generator.standard_normal((classes, dim))
    x = np.repeat(centre, size, 0) + 0.4 * generator.standard_normal((classes * size, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x.astype(np.float32), np.arange(len(x)) * 2 + 7, np.repeat(np.arange(classes), size)


@pytest.mark.parametrize("factory", ["IVF16,Flat", "HNSW16", "IVF8,PQ6x4", "IVFclasses,Flat"])
def test_lists_against_the_exact_ones(factory):
    x, rows, labels = clusters()
    *found, record, messages = approximate_both(x, rows, labels, 12, factory)
    recalls = []
    for lists, true in zip(found, nearest_both(x, rows, labels, 12)):
        assert (lists.rows >= 0).all()
        assert not (lists.rows == rows[:, None]).any()
        place = (lists.rows - 7) // 2
        np.testing.assert_allclose(lists.distance, np.linalg.norm(x[place] - x[:, None], axis=2), atol=1e-6)
        assert (np.diff(lists.distance, axis=1) >= 0).all()
        recalls.append(np.mean([len(set(a) & set(b)) / 12 for a, b in zip(lists.rows, true.rows)]))
    assert (labels[(found[1].rows - 7) // 2] != labels[:, None]).all()
    assert [record["recall"], record["recall_other"]] == pytest.approx(recalls, abs=0.02)
    assert record["sampled"] == 1000
    assert record["knn_index"] == factory
    assert f"knn index {factory}: recall" in messages[0]
    assert (min(record["recall"], record["recall_other"]) >= TARGET) == (len(messages) == 1)
    assert factory != "HNSW16" or min(recalls) > TARGET - 0.02


def test_the_search_is_widened_until_it_finds_enough_and_no_further():
    x, rows, labels = clusters(dim=3)
    *_, record, messages = approximate_both(x, rows, labels, 12, "IVF16,Flat")
    assert record["search"]["nprobe"] in (2, 4)
    assert record["recall"] >= record["recall_other"] > 0.9
    far = np.random.default_rng(1).standard_normal((1200, 64)).astype(np.float32)
    *_, record, messages = approximate_both(far, rows, labels, 12, "IVF16,Flat")
    assert record["search"]["nprobe"] == 4  # a quarter
    assert record["recall_other"] < TARGET
    assert "no cells that hold neighbours together" in messages[1]


@pytest.mark.parametrize("factory", ["IVF16,Flat", "HNSW16"])
def test_an_inverted_file_is_searched_on_the_gpu_where_faiss_can(monkeypatch, factory):
    """With a stand-in for faiss's GPU part: which index is copied, how wide it is, and that the lists do not change."""
    faiss = pytest.importorskip("faiss")
    copied = []

    def copy(resources, number, index):
        copied.append((resources, number, faiss.downcast_index(index).nprobe))
        return faiss.clone_index(index)

    x, rows, labels = clusters(dim=3)
    expected = approximate_both(x, rows, labels, 12, factory)
    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: "resources", raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", copy, raising=False)
    approximate_both(x, rows, labels, 12, factory)
    assert copied == []  # on the CPU, unless asked
    searched = approximate._FaissCandidates(factory, x, rows, labels, 12, 0, torch.device("cuda:1"))
    sample = np.arange(0, len(x), 3)
    own = {"queries": x[sample], "query_rows": rows[sample], "query_labels": labels[sample]}
    searched.settle(sample, nearest_both(x, rows, labels, 12, **own))
    assert searched.record() == expected[2]["search"]
    if factory == "HNSW16":
        assert copied == []
    else:
        assert copied[0] == ("resources", 1, 1)
        assert [width for _, _, width in copied] == [2**i for i in range(len(copied))]
        assert copied[-1][2] == searched.record()["nprobe"]
    np.testing.assert_array_equal(searched.listed(np.arange(len(x)))[0][0][:, :12], expected[0].rows)
    monkeypatch.setattr(approximate, "MOST_ON_GPU", 1)
    assert searched._on_device() is searched.index


def test_the_same_lists_on_every_run():
    x, rows, labels = clusters()
    first, second = (approximate_both(x, rows, labels, 5, "IVF16,Flat") for _ in range(2))
    np.testing.assert_array_equal(first[0].rows, second[0].rows)
    assert first[2] == second[2]


def test_short_lists_are_completed_exactly():
    x, rows, _ = clusters()
    labels = np.zeros(len(x), np.int64)
    labels[-20:] = 1  # of 1180 items, the nearest 300 have the same label
    _, others, record, _ = approximate_both(x, rows, labels, 15, "IVF16,Flat")
    assert record["completed"] > 100
    exact = nearest_both(x, rows, labels, 15)[1]
    assert (others.rows >= 0).all()
    same = [len(set(a) & set(b)) / 15 for a, b in zip(others.rows, exact.rows)]
    assert np.mean(same) > 0.98


def test_more_neighbours_than_there_are():
    x, rows, labels = clusters(20, 8)
    everything, others, _, _ = approximate_both(x, rows, labels, 200, "IVF2,Flat")
    exact = nearest_both(x, rows, labels, 200)
    np.testing.assert_array_equal(everything.rows, exact[0].rows)
    np.testing.assert_array_equal(others.rows, exact[1].rows)
    assert everything.short == len(x)


def test_too_few_items_are_searched_exactly_and_it_is_said():
    x, rows, labels = clusters(10, 8)
    everything, _, record, messages = approximate_both(x, rows, labels, 5, "IVF16,Flat")
    assert record == {"knn_index": "Flat"}
    assert "80 items, but 16 lists need 39 each; searched exactly" in messages[0]
    np.testing.assert_array_equal(everything.rows, nearest_both(x, rows, labels, 5)[0].rows)
    with pytest.raises(InputError, match="no faiss factory"):
        approximate_both(*clusters(), 5, "IVFF16,Flat")
