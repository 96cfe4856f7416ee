"""The Market-1501 layout, whole and damaged."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError, MissingError
from hardmine.options import check
from hardmine.pipeline.readers.base import Options, Picture, Reject, readers
from hardmine.pipeline.readers.market1501 import DISTRACTOR, IDENTITY, JUNK, OFFICIAL, ROLES, Market1501
from hardmine.pipeline.readers.official import Size

TRAIN = ["0002_c1s1_000451_03.jpg", "0002_c2s1_000301_01.jpg", "0007_c3s3_077419_03.jpg"]
QUERY = ["0001_c1s1_001051_00.jpg", "1501_c6s4_012327_00.jpg"]
GALLERY = [
    "-1_c1s1_000401_03.jpg",
    "-1_c6s2_021018_00.jpg",
    "0000_c1s1_000151_01.jpg",
    "0001_c2s1_000001_00.jpg",
    "0001_c1s1_001051_03.jpg",
    "1501_c3s3_000001_00.jpg",
]


def make(root: Path, train: Iterable[str] = TRAIN, query: Iterable[str] = QUERY, test: Iterable[str] = GALLERY) -> Path:
    """Files whose content is their own name: a reader never decodes them."""
    for folder, names in (("bounding_box_train", train), ("query", query), ("bounding_box_test", test)):
        (root / folder).mkdir(parents=True)
        for name in names:
            (root / folder / name).write_bytes(f"{folder} {name}".encode())
    return root


def test_splits_people_cameras_and_roles(tmp_path: Path) -> None:
    reader = readers.get("market1501")(make(tmp_path), Options())
    found = reader.candidates()
    assert found.split is not None
    assert found.pixel_shape is None
    names = [*(f"bounding_box_train/{n}" for n in TRAIN), *(f"query/{n}" for n in QUERY)]
    names += [f"bounding_box_test/{n}" for n in sorted(GALLERY)]
    assert [name.decode() for name in found.source] == names
    assert found.raw_label.dtype == np.int64
    assert found.raw_label.tolist() == [2, 2, 7, 1, 1501, -1, -1, 0, 1, 1, 1501]
    assert found.split.tolist() == [b"train"] * 3 + [b"query"] * 2 + [b""] * 2 + [b"gallery"] * 4
    camera, role = found.columns["camera"], found.columns["role"]
    assert (camera.dtype, role.dtype) == (np.int64, np.int64)
    assert camera.tolist() == [1, 2, 3, 1, 6, 1, 6, 1, 1, 2, 3]
    assert role.tolist() == [IDENTITY] * 5 + [JUNK] * 2 + [DISTRACTOR] + [IDENTITY] * 3
    assert (ROLES[0], ROLES[1], ROLES[2]) == ("identity", "distractor", "junk")
    assert found.rejects == []
    for number, item in reader.read(range(len(names))):
        assert item == Picture(names[number].replace("/", " ", 1).encode(), names[number].encode(), None)


def test_read_goes_to_workers_and_rejects_what_is_gone(tmp_path: Path) -> None:
    reader = Market1501(make(tmp_path), Options())
    reader.candidates()
    (tmp_path / "query" / QUERY[1]).unlink()
    (tmp_path / "query" / QUERY[0]).write_bytes(b"")
    sent = pickle.loads(pickle.dumps(reader))
    items = dict(sent.read([3, 4, 9]))
    assert items[3] == Reject(f"query/{QUERY[0]}".encode(), "empty file (0 bytes)")
    assert items[4] == Reject(f"query/{QUERY[1]}".encode(), "no such file")
    assert isinstance(items[9], Picture)


def test_other_names_and_files(tmp_path: Path) -> None:
    make(tmp_path)
    for name in ("Thumbs.db", ".DS_Store", "notes.txt", "0003_c1s1_000001_00.JPG", "0004c1.jpg", "00045_x.jpg"):
        (tmp_path / "bounding_box_test" / name).write_bytes(b"x")
    (tmp_path / "bounding_box_train/Thumbs.db").touch()
    found = Market1501(tmp_path, Options()).candidates()
    assert b"bounding_box_test/0003_c1s1_000001_00.JPG" in found.source
    assert [(reject.source, reject.reason) for reject in found.rejects] == [
        (b"bounding_box_test/00045_x.jpg", "the name is not PPPP_cCsS_FFFFFF_BB.jpg"),
        (b"bounding_box_test/0004c1.jpg", "the name is not PPPP_cCsS_FFFFFF_BB.jpg"),
    ]
    assert found.counts["dot files skipped"] == 1
    assert found.counts["files skipped that are no .jpg (Thumbs.db and the like)"] == 3


def test_a_distractor_is_in_the_gallery_only(tmp_path: Path) -> None:
    make(tmp_path, train=["0000_c1s1_000001_00.jpg", "-1_c1s1_000001_00.jpg", "0002_c1s1_000001_00.jpg"])
    found = Market1501(tmp_path, Options()).candidates()
    assert found.split is not None
    assert found.split[:3].tolist() == [b"", b"", b"train"]


def test_the_official_numbers_are_checked_and_said(tmp_path: Path) -> None:
    counts = Market1501(make(tmp_path), Options()).candidates().counts
    assert counts["market1501: numbers that differ from the published ones"] == 8
    assert counts["market1501: images in train (12,936 expected)"] == 3
    assert counts["market1501: classes in train (751 expected)"] == 2
    assert counts["market1501: images in query (3,368 expected)"] == 2
    assert counts["market1501: images in gallery (15,913 expected)"] == 4
    assert counts["market1501: images in bounding_box_test (19,732 expected)"] == 6
    assert counts["market1501: distractors in the gallery (2,793 expected)"] == 1
    assert counts["market1501: junk, stored in no split"] == 2
    # the published numbers, as they add up
    assert OFFICIAL.splits == {"train": Size(12936, 751), "query": Size(3368, 750), "gallery": Size(15913, 751)}
    assert Size(12936 + 3368 + 19732, 751 + 750 + 2) == OFFICIAL.whole


def test_the_official_numbers_as_published(tmp_path: Path) -> None:
    """Counted without the files: nothing differs."""
    people = {b"train": (12936, range(2, 753)), b"query": (3368, range(800, 1550))}
    people[b"gallery"] = (15913, range(799, 1550))  # 799 stands for the distractors' 0
    label = [p for count, ids in people.values() for p in np.resize(np.array(ids), count).tolist()] + [-1] * 3819
    split = [side for side, (count, _) in people.items() for _ in range(count)] + [b""] * 3819
    assert OFFICIAL.compare(label, split) == {"market1501: numbers that differ from the published ones": 0}


def test_wrong_folders(tmp_path: Path) -> None:
    make(tmp_path / "all/Market-1501-v15.09.15")
    with pytest.raises(MissingError, match=r"no bounding_box_train and no query .*Give its folder Market-1501-v15"):
        Market1501(tmp_path / "all", Options()).candidates()
    with pytest.raises(MissingError, match="no folder"):
        Market1501(tmp_path / "nowhere", Options()).candidates()
    for folder in ("bounding_box_train", "query", "bounding_box_test"):
        (tmp_path / "empty" / folder).mkdir(parents=True)
    with pytest.raises(InputError, match="no usable image"):
        Market1501(tmp_path / "empty", Options()).candidates()
    with pytest.raises(InputError, match="options of market1501"):
        check(Market1501.Options, {"camera": 3}, "options of market1501")
