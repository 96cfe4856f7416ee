"""Derived data against plain loops."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import pdist

import hardmine.mining.derive as derive
from hardmine.errors import InputError


@pytest.mark.parametrize("large", [4, 1024])
def test_pair_distances_of_ragged_classes(monkeypatch, large):
    monkeypatch.setattr(derive, "LARGE_CLASS", large)
    monkeypatch.setattr(derive, "PAIRS_PER_STEP", 11)
    sizes = [0, 3, 1, 0, 7, 2, 3, 3, 0]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = np.random.default_rng(0).standard_normal((sum(sizes), 10)).astype(np.float32)
    values, pair_offsets = derive.class_pair_distances(x, offsets)
    assert np.diff(pair_offsets).tolist() == [k * (k - 1) // 2 for k in sizes]
    for c in range(len(sizes)):
        expected = pdist(x[offsets[c] : offsets[c + 1]].astype(float)) if sizes[c] > 1 else []
        np.testing.assert_allclose(values[pair_offsets[c] : pair_offsets[c + 1]], expected, rtol=1e-6)
    assert values.dtype == np.float32
    assert pair_offsets.dtype == np.int64


def test_too_many_pairs_are_refused_before_memory_runs_out():
    offsets = np.array([0, 200_000])
    with pytest.raises(InputError, match="without 'pairs'"):
        derive.class_pair_distances(np.empty((0, 2), np.float32), offsets)


def test_centroids_and_nearest_classes():
    sizes = [0, 2, 1, 0, 3, 0]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
    centroids = derive.class_centroids(x, offsets)
    for c, size in enumerate(sizes):
        part = x[offsets[c] : offsets[c + 1]].astype(float)
        if size:
            np.testing.assert_allclose(centroids[c], part.mean(0), rtol=1e-5, atol=1e-7)
        else:
            assert np.isnan(centroids[c]).all()
    classes, distance = derive.nearest_classes(centroids, 3)
    for c in range(len(sizes)):
        others = sorted((float(np.linalg.norm(centroids[c] - centroids[o])), o) for o in (1, 2, 4) if o != c)
        if not sizes[c]:
            others = []
        assert classes[c].tolist() == ([o for _, o in others] + [-1] * 3)[:3]
        np.testing.assert_allclose(distance[c, : len(others)], [d for d, _ in others], rtol=1e-6)
        assert np.isnan(distance[c, len(others) :]).all()


def test_a_long_search_of_all_with_all_is_advised_against(monkeypatch):
    x = np.random.default_rng(2).standard_normal((12, 4)).astype(np.float32)
    items = np.arange(12)
    source = SimpleNamespace(items=items, descriptors=lambda: x, entry_row=items, entry_label=items // 3)
    assert derive.neighbour_lists(source, 2)[3] == []
    monkeypatch.setattr(derive, "INDEX_PAYS", 11)
    assert derive.neighbour_lists(source, 2)[3] == [
        "12 items were compared with all. Where classes are small clusters, --knn-index IVFclasses,Flat finds most of "
        "the neighbours in less time"
    ]
    assert derive.neighbour_lists(source, 2, knn_index="Flat")[3] == []  # asked for
