"""Public reports about datasets that come with lists, by their number in our log."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.ingest import ingest
from hardmine.store.patches import PatchStore


def fill(folder: Path, *names: str) -> None:
    buffer = io.BytesIO()
    Image.new("L", (4, 4)).save(buffer, "PNG")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(buffer.getvalue())


@pytest.mark.parametrize("file", ["lists/files.txt", "files.txt", "annotations-mat/001.Albatross/a.mat"])
def test_b31_cub_200_2010_is_recognised(tmp_path: Path, file: str) -> None:
    fill(tmp_path / "src", file, "images/001.Albatross/a.jpg")
    with pytest.raises(InputError, match=r"is CUB-200-2010 \(6,033 images\).*CUB-200-2011 \(11,788 images of 200"):
        ingest("cub", tmp_path / "src", tmp_path / "store")


def test_b31_cub_200_2010_is_recognised_by_its_number_of_images(tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text("".join(f"{i} 001.Albatross/{i}.jpg\n" for i in range(1, 6034)))
    (tmp_path / "image_class_labels.txt").write_text("".join(f"{i} 1\n" for i in range(1, 6034)))
    with pytest.raises(InputError, match="is CUB-200-2010"):
        ingest("cub", tmp_path, tmp_path / "store")


def test_b31_the_numbers_of_cub_are_checked_and_said(tmp_path: Path) -> None:
    src = tmp_path / "src"
    fill(src, "images/001.Albatross/a.jpg", "images/150.Warbler/b.jpg")
    (src / "images.txt").write_text("1 001.Albatross/a.jpg\n2 150.Warbler/b.jpg\n")
    (src / "image_class_labels.txt").write_text("1 1\n2 150\n")
    report = ingest("cub", src, tmp_path / "store")
    assert report.counts["cub: images (11,788 expected)"] == 2
    assert report.counts["cub: classes (200 expected)"] == 2
    store = PatchStore.open(tmp_path / "store")
    assert store.split_names == ["train", "test"]
    assert [store.raw_label[store.rows(split)].tolist() for split in store.split_names] == [[1], [150]]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("inshop", r"no Eval/list_eval_partition.txt or .*\(found: img\): it is in the folder Eval of DeepFashion's"),
        ("sop", r"no Ebay_train.txt in .*\(found: img\): it is part of Stanford_Online_Products.zip"),
    ],
)
def test_b32_a_missing_list_is_named_with_where_it_comes_from(tmp_path: Path, kind: str, message: str) -> None:
    fill(tmp_path / "src", "img/a.jpg")
    with pytest.raises(MissingError, match=message):
        ingest(kind, tmp_path / "src", tmp_path / "store")


def test_b32_a_list_made_by_hand_is_named_by_its_line(tmp_path: Path) -> None:
    fill(tmp_path / "src", "a.jpg")
    for split in ("train", "test"):
        (tmp_path / f"src/Ebay_{split}.txt").write_text("image_id class_id super_class_id path\n1,1,1,a.jpg\n")
    with pytest.raises(InputError, match=r"Ebay_train.txt:2: expected image_id .*; found '1,1,1,a.jpg'"):
        ingest("sop", tmp_path / "src", tmp_path / "store")


def test_b33_class_numbers_with_gaps(tmp_path: Path) -> None:
    fill(tmp_path / "src", *(f"bicycle_final/{i}.JPG" for i in range(4)))
    header = "image_id class_id super_class_id path\n"
    rows = [f"{i} {label} 1 bicycle_final/{i}.JPG\n" for i, label in enumerate((68268, 0, 5, 5))]
    (tmp_path / "src/Ebay_train.txt").write_text(header + "".join(rows[:3]))
    (tmp_path / "src/Ebay_test.txt").write_text(header + rows[3])
    ingest("sop", tmp_path / "src", tmp_path / "store")
    store = PatchStore.open(tmp_path / "store")
    assert store.label.tolist() == [0, 1, 1, 2]
    assert store.raw_label.tolist() == [0, 5, 5, 68268]


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_b34_labels_are_words_and_007_is_not_7(tmp_path: Path, kind: str) -> None:
    names = ["cat/1.png", "dog/1.png", "007/1.png", "7/1.png", "7/2.png"]
    fill(tmp_path / "src", *names)
    table = tmp_path / "src/t.csv"
    table.write_text("path,label\n" + "".join(f"{name},{name.split('/')[0]}\n" for name in names))
    ingest(kind, tmp_path / "src" if kind == "folder" else table, tmp_path / "store")
    store = PatchStore.open(tmp_path / "store")
    assert store.num_classes == 4
    assert store.raw_label.tolist() == [b"007", b"7", b"7", b"cat", b"dog"]


def test_b36_classes_with_one_sample_are_counted_and_can_be_set_aside(tmp_path: Path) -> None:
    fill(tmp_path / "src", *(f"{size}/{i}.png" for size in (1, 2, 50) for i in range(size)))
    report = ingest("folder", tmp_path / "src", tmp_path / "store", min_per_class=2)
    assert (report.counts["classes"], report.counts["classes with one patch"]) == (3, 1)
    assert report.counts["patches set aside by class size"] == 1
    store = PatchStore.open(tmp_path / "store")
    assert np.unique(store.label[store.rows()]).tolist() == [1, 2]
