"""CUB-200-2011 in its own layout, on few images."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardmine.errors import InputError, MissingError
from hardmine.options import Options
from hardmine.pipeline.readers.base import Candidates, Picture, Reject
from hardmine.pipeline.readers.cub import OFFICIAL, Cub

CLASSES = {1: "001.Black_footed_Albatross", 100: "100.Brown_Pelican", 101: "101.White_Pelican", 200: "200.Yellowthroat"}
IMAGES = [(1, 1, "a.jpg"), (2, 1, "b.jpg"), (3, 100, "c.jpg"), (4, 101, "d.jpg"), (5, 200, "e.jpg")]


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "images.txt").write_text("".join(f"{i} {CLASSES[c]}/{name}\n" for i, c, name in IMAGES))
    (folder / "image_class_labels.txt").write_text("".join(f"{i} {c}\n" for i, c, _ in IMAGES))
    (folder / "train_test_split.txt").write_text("".join(f"{i} {i % 2}\n" for i, _, _ in IMAGES))
    (folder / "classes.txt").write_text("".join(f"{c} {name}\n" for c, name in CLASSES.items()))
    (folder / "bounding_boxes.txt").write_text("".join(f"{i} {i}.0 27.0 325.0 304.5\n" for i, _, _ in IMAGES))
    for _, c, name in IMAGES:
        (folder / "images" / CLASSES[c]).mkdir(parents=True, exist_ok=True)
        (folder / "images" / CLASSES[c] / name).write_bytes(name.encode())
    return folder


def listed(folder: Path) -> Candidates:
    return Cub(folder, Options()).candidates()


def test_the_retrieval_split_is_by_class(tmp_path: Path) -> None:
    found = listed(make(tmp_path))
    assert found.raw_label.tolist() == [1, 1, 100, 101, 200]
    assert found.source[0] == b"images/001.Black_footed_Albatross/a.jpg"
    assert found.split is not None
    assert found.split.tolist() == [b"train", b"train", b"train", b"test", b"test"]
    assert len(found.files) == 3 + 5


def test_files_come_with_their_boxes(tmp_path: Path) -> None:
    items = dict(Cub(make(tmp_path), Options()).read([0, 4]))
    assert items[0] == Picture(b"a.jpg", b"images/001.Black_footed_Albatross/a.jpg", (1.0, 27.0, 326.0, 331.5))
    assert items[4] == Picture(b"e.jpg", b"images/200.Yellowthroat/e.jpg", (5.0, 27.0, 330.0, 331.5))


def test_boxes_may_be_missing(tmp_path: Path) -> None:
    make(tmp_path)
    assert "cub: images without a bounding box" not in listed(tmp_path).counts
    (tmp_path / "bounding_boxes.txt").write_text("1 0 0 10 10\n")
    assert listed(tmp_path).counts["cub: images without a bounding box"] == 4
    assert [getattr(item, "box", 0) for _, item in Cub(tmp_path, Options()).read([0, 1])] == [(0, 0, 10, 10), None]
    (tmp_path / "bounding_boxes.txt").unlink()
    assert listed(tmp_path).counts["cub: images without a bounding box"] == 5


def test_what_differs_from_the_published_numbers_is_said(tmp_path: Path) -> None:
    assert listed(make(tmp_path)).counts == {
        "cub: numbers that differ from the published ones": 6,
        "cub: images (11,788 expected)": 5,
        "cub: classes (200 expected)": 4,
        "cub: images in train (5,864 expected)": 3,
        "cub: classes in train (100 expected)": 2,
        "cub: images in test (5,924 expected)": 2,
        "cub: classes in test (100 expected)": 2,
    }
    train = [1 + i % 100 for i in range(5864)]
    test = [101 + i % 100 for i in range(5924)]
    counts = OFFICIAL.compare(train + test, [b"train"] * 5864 + [b"test"] * 5924)
    assert counts == {"cub: numbers that differ from the published ones": 0}


def test_a_missing_image_is_found_out_on_reading(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "images/100.Brown_Pelican/c.jpg").unlink()
    assert len(listed(tmp_path).source) == 5
    assert list(Cub(tmp_path, Options()).read([2])) == [(2, Reject(b"images/100.Brown_Pelican/c.jpg", "no such file"))]


def test_an_image_without_a_class_is_a_reject(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "image_class_labels.txt").write_text("1 1\n5 200\n9 7\n")
    found = listed(tmp_path)
    assert found.raw_label.tolist() == [1, 200]
    assert [item.box for _, item in Cub(tmp_path, Options()).read([1]) if isinstance(item, Picture)] == [
        (5.0, 27.0, 330.0, 331.5)
    ]
    assert found.rejects[2] == Reject(
        b"images/101.White_Pelican/d.jpg", "image 4 has no line in image_class_labels.txt"
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "images.txt",
            "1 a.jpg\n2\n",
            r"images.txt:2: expected image_id \(a whole number\), path \(a word\); found '2'",
        ),
        ("images.txt", "1 a.jpg\n\none b.jpg\n", r"images.txt:3: expected .*; found 'one b.jpg'"),
        ("images.txt", "1 a.jpg\n1 b.jpg\n", r"images.txt:2: image 1 is in line 1 already"),
        ("image_class_labels.txt", "1 1\n1 2\n", r"image_class_labels.txt:2: image 1 is in line 1 already"),
        ("image_class_labels.txt", "", r"image_class_labels.txt: empty file"),
        ("bounding_boxes.txt", "1 0 0 nan 5\n", r"bounding_boxes.txt:1: expected .*height \(a number\)"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, file: str, content: str, message: str) -> None:
    make(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=message):
        listed(tmp_path)


def test_the_wrong_folder_names_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no images.txt in .*\(found: nothing\): it is part of CUB_200_2011.tgz"):
        listed(tmp_path)
    with pytest.raises(MissingError, match=r"no folder .*gone"):
        listed(tmp_path / "gone")
    make(tmp_path / "CUB_200_2011")
    with pytest.raises(MissingError, match=r"but in its folder CUB_200_2011: give .*CUB_200_2011"):
        listed(tmp_path)
    (tmp_path / "CUB_200_2011/image_class_labels.txt").unlink()
    with pytest.raises(MissingError, match=r"no image_class_labels.txt in .*\(found: bounding_boxes.txt, classes.txt"):
        listed(tmp_path / "CUB_200_2011")
