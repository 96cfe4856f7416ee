"""Public reports about HPatches and Market-1501, by their number in our log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.ingest import IngestReport, ingest
from hardmine.pipeline.readers.hpatches_names import SEQUENCES
from hardmine.pipeline.readers.market1501 import DISTRACTOR, JUNK
from hardmine.protocols.base import protocol
from hardmine.store.patches import PatchStore

KINDS = ["ref", *(f"{noise}{k}" for noise in "eht" for k in range(1, 6))]


def sequence(folder: Path, strips: dict[str, np.ndarray]) -> None:
    """An HPatches sequence; the strips that are not given are of 12 patches."""
    folder.mkdir(parents=True)
    usual = np.random.default_rng(0).integers(0, 256, (12 * 65, 65), dtype=np.uint8)
    for kind in KINDS:
        Image.fromarray(strips.get(kind, usual)).save(folder / f"{kind}.png", compress_level=0)


def market(root: Path, names: dict[str, list[str]]) -> None:
    for folder in ("bounding_box_train", "query", "bounding_box_test"):
        (root / folder).mkdir(parents=True)
        for shade, name in enumerate(names.get(folder, [])):
            Image.new("RGB", (16, 32), (shade, 0, 0)).save(root / folder / name)


def stored(kind: str, src: Path) -> tuple[PatchStore, IngestReport]:
    report = ingest(kind, src, src.with_name("store"))
    return PatchStore.open(src.with_name("store")), report


def test_b22_a_strip_of_an_odd_height(tmp_path: Path) -> None:
    sequence(tmp_path / "src/v_odd", {"ref": np.zeros((65 * 12 + 7, 65), np.uint8)})
    sequence(tmp_path / "src/v_good", {})
    store, report = stored("hpatches", tmp_path / "src")
    assert store.rejects() == [(b"v_odd", "ref.png: height 787 is not a multiple of 65; the sequence is left out")]
    assert len(store) == 12 * 16
    assert report.counts["sequences left out"] == 1
    with pytest.raises(InputError, match=r"v_odd: ref\.png: height 787 is not a multiple of 65"):
        ingest("hpatches", tmp_path / "src", tmp_path / "strict", on_bad="fail")


def test_b22_strips_of_different_heights(tmp_path: Path) -> None:
    sequence(tmp_path / "src/v_uneven", {"h4": np.zeros((65 * 11, 65), np.uint8)})
    with pytest.raises(InputError, match=r"h4\.png: height 715 \(11 patches\), but ref\.png has 780 \(12 patches\)"):
        ingest("hpatches", tmp_path / "src", tmp_path / "store")


def test_b23_flat_patches_stay_in_line(tmp_path: Path) -> None:
    flat = np.random.default_rng(1).integers(0, 256, (12 * 65, 65), dtype=np.uint8)
    flat[3 * 65 : 4 * 65] = 128  # one patch of one grey value
    sequence(tmp_path / "src/i_flat", {"ref": flat, "e1": np.zeros((12 * 65, 65), np.uint8)})
    store, _ = stored("hpatches", tmp_path / "src")
    assert len(store) == 12 * 16
    index, kind = store.column("index"), store.column("kind")
    assert index is not None
    assert kind is not None
    for k in range(16):
        assert index[kind == k].tolist() == list(range(12))
    rows = np.flatnonzero(kind == 0)
    np.testing.assert_array_equal(store.gather(rows), flat.reshape(12, 65, 65))
    assert (store.gather(rows[3:4]) == 128).all()


def test_b26_a_partial_release_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    for name in SEQUENCES[16:]:
        sequence(tmp_path / "src" / name, dict.fromkeys(KINDS, np.zeros((65, 65), np.uint8)))
    _, report = stored("hpatches", tmp_path / "src")
    assert report.counts["sequences (116 expected)"] == 100
    assert report.counts[f"sequences missing: {', '.join(SEQUENCES[:16])}"] == 16


def test_b28_junk_and_distractors_keep_their_roles(tmp_path: Path) -> None:
    gallery = ["-1_c1s1_000001_00.jpg", "0000_c2s1_000001_00.jpg", "0001_c1s1_000001_00.jpg", "0001_c2s1_000001_00.jpg"]
    names = {"query": ["0001_c1s1_000009_00.jpg"], "bounding_box_test": gallery}
    market(tmp_path / "src", names | {"bounding_box_train": ["0002_c1s1_000001_00.jpg"]})
    (tmp_path / "src/bounding_box_test/Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    store, report = stored("market1501", tmp_path / "src")
    role, camera = store.column("role"), store.column("camera")
    assert role is not None
    assert camera is not None
    assert len(store) == 6  # nothing was dropped
    ranked = store.rows("gallery")
    assert sorted(store.raw_label[ranked].tolist()) == [0, 1, 1]  # no junk, and the distractor
    assert (role[ranked] == DISTRACTOR).tolist() == (store.raw_label[ranked] == 0).tolist()
    assert store.raw_label[role == JUNK].tolist() == [-1]
    query = store.rows("query")
    same = (store.label[ranked] == store.label[query[0]]) & (camera[ranked] == camera[query[0]])
    assert store.source[ranked[same]].tolist() == [b"bounding_box_test/0001_c1s1_000001_00.jpg"]  # what is ignored
    assert report.counts["market1501: images in gallery (15,913 expected)"] == 3
    assert report.counts["market1501: images in bounding_box_test (19,732 expected)"] == 4
    assert report.counts["files skipped that are no .jpg (Thumbs.db and the like)"] == 1


def test_b28_the_ranking_is_without_junk_and_with_distractors(tmp_path: Path) -> None:
    """Nearest first: junk, the query's own camera's, a distractor, the match: the match is second of what counts."""
    gallery = ["-1_c1s1_000001_00.jpg", "0001_c1s1_000002_00.jpg", "0000_c2s1_000003_00.jpg", "0001_c2s1_000004_00.jpg"]
    names = {"query": ["0001_c1s1_000000_00.jpg"], "bounding_box_test": gallery}
    market(tmp_path / "src", names | {"bounding_box_train": ["0002_c1s1_000009_00.jpg"]})
    store, _ = stored("market1501", tmp_path / "src")
    frame = np.array([[float(name[-11:-7])] for name in store.source])
    method = protocol("retrieval", {"protocol": "market1501", "k": [1, 2]})
    found = method.evaluate(store, lambda rows: frame[rows], None)
    assert found.metrics == {"rank-1": 0, "rank-2": 1, "map": 0.5, "map-trapezoid": 0.25}
    assert (found.facts["gallery"], found.facts["junk_dropped"], found.facts["distractors"]) == (3, 1, 1)


def test_b29_queries_come_from_the_query_folder_alone(tmp_path: Path) -> None:
    gallery = [f"0001_c{camera}s1_00000{camera}_00.jpg" for camera in range(1, 6)]
    names = {"query": ["0001_c6s1_000009_00.jpg"], "bounding_box_test": gallery}
    market(tmp_path / "src", names | {"bounding_box_train": ["0002_c1s1_000001_00.jpg"]})
    store, report = stored("market1501", tmp_path / "src")
    assert store.split_names == ["train", "query", "gallery"]
    assert store.source[store.rows("query")].tolist() == [b"query/0001_c6s1_000009_00.jpg"]
    assert len(store.rows("gallery")) == 5
    assert report.counts["market1501: images in query (3,368 expected)"] == 1
    for path in (tmp_path / "src/query").iterdir():
        path.unlink()
    (tmp_path / "src/query").rmdir()
    with pytest.raises(MissingError, match="no query in"):
        ingest("market1501", tmp_path / "src", tmp_path / "without")
