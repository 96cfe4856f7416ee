"""Public reports about data sets, by their number in our log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hardmine.pipeline.ingest import ingest
from hardmine.store.patches import PatchStore


def test_b19_a_folder_without_the_evaluation_pairs(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 6)
    counts = ingest("phototour", tmp_path / "src", tmp_path / "store").counts
    assert counts["evaluation pair files (evaluation needs m50_100000_100000_0.txt)"] == 0
    assert PatchStore.open(tmp_path / "store").pair_names == []


def test_b20_the_last_mosaic_is_partly_filled(tmp_path: Path, phototour: Callable) -> None:
    patches = phototour(tmp_path / "src", 256 + 44)
    report = ingest("phototour", tmp_path / "src", tmp_path / "store")
    store = PatchStore.open(tmp_path / "store")
    assert len(store) == report.counts["patches kept"] == 300
    assert store.rejects() == []
    np.testing.assert_array_equal(store.gather(np.array([299])), patches[299:])


def test_b33_labels_with_gaps(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 6, points=[68268, 0, 5, 5, 0, 68268], pairs="0 68268 0 5 68268 0\n1 0 0 2 5 0\n")
    ingest("phototour", tmp_path / "src", tmp_path / "store")
    store = PatchStore.open(tmp_path / "store")
    assert store.num_classes == 3
    assert store.label.tolist() == [0, 0, 1, 1, 2, 2]
    assert store.raw_label.tolist() == [0, 0, 5, 5, 68268, 68268]
    pairs = store.pairs()
    assert (store.label[pairs.first] == store.label[pairs.second]).tolist() == pairs.match.tolist() == [True, False]


def test_b34_string_labels(tmp_path: Path, made_up: Callable) -> None:
    made_up(raw_label=np.array([b"cat", b"7", b"007", b"dog", b"7"]))
    ingest("made-up", tmp_path, tmp_path / "store")
    store = PatchStore.open(tmp_path / "store")
    assert store.num_classes == 4
    assert store.raw_label.tolist() == [b"007", b"7", b"7", b"cat", b"dog"]


def test_b36_classes_with_one_sample_are_counted(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 53, points=[0] + [1] * 2 + [2] * 50)
    counts = ingest("phototour", tmp_path / "src", tmp_path / "store").counts
    assert (counts["classes"], counts["classes with one patch"]) == (3, 1)
