"""Stanford Online Products in its own layout, on few images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError, MissingError
from hardmine.options import Options
from hardmine.pipeline.readers.base import Candidates, Picture, Reject
from hardmine.pipeline.readers.sop import OFFICIAL, Sop

HEADER = "image_id class_id super_class_id path\n"
TRAIN = HEADER + "1 1 1 bicycle_final/111085122871_0.JPG\n2 1 1 bicycle_final/111085122871_1.JPG\n"
TEST = HEADER + "59552 11319 12 toaster_final/251952414262_0.JPG\n"


def make(src: Path, train: str = TRAIN, test: str = TEST) -> Path:
    src.mkdir(exist_ok=True)
    (src / "Ebay_train.txt").write_text(train)
    (src / "Ebay_test.txt").write_text(test)
    (src / "bicycle_final").mkdir(exist_ok=True)
    (src / "bicycle_final/111085122871_0.JPG").write_bytes(b"bicycle")
    return src


def listed(src: Path) -> Candidates:
    return Sop(src, Options()).candidates()


def test_both_lists_in_order(tmp_path: Path) -> None:
    found = listed(make(tmp_path))
    assert found.source.tolist() == [
        b"bicycle_final/111085122871_0.JPG",
        b"bicycle_final/111085122871_1.JPG",
        b"toaster_final/251952414262_0.JPG",
    ]
    assert found.raw_label.tolist() == [1, 1, 11319]
    assert found.columns["super_class"].tolist() == [1, 1, 12]
    assert (found.raw_label.dtype, found.columns["super_class"].dtype) == (np.int64, np.int64)
    assert found.split is not None
    assert found.split.tolist() == [b"train", b"train", b"test"]
    assert [item for _, item in Sop(tmp_path, Options()).read([0, 1])] == [
        Picture(b"bicycle", b"bicycle_final/111085122871_0.JPG"),
        Reject(b"bicycle_final/111085122871_1.JPG", "no such file"),
    ]


def test_what_differs_from_the_published_numbers_is_said(tmp_path: Path) -> None:
    assert listed(make(tmp_path)).counts == {
        "sop: numbers that differ from the published ones": 6,
        "sop: images (120,053 expected)": 3,
        "sop: classes (22,634 expected)": 2,
        "sop: images in train (59,551 expected)": 2,
        "sop: classes in train (11,318 expected)": 1,
        "sop: images in test (60,502 expected)": 1,
        "sop: classes in test (11,316 expected)": 1,
    }
    label = [1 + i % 11318 for i in range(59551)] + [11319 + i % 11316 for i in range(60502)]
    assert list(OFFICIAL.compare(label, [b"train"] * 59551 + [b"test"] * 60502).values()) == [0]


def test_an_image_in_both_lists_stays_in_the_first(tmp_path: Path) -> None:
    found = listed(make(tmp_path, test=TRAIN))
    assert len(found.source) == 2
    assert found.rejects[0] == Reject(
        b"bicycle_final/111085122871_0.JPG",
        "listed again in Ebay_test.txt:2 (first: Ebay_train.txt:2); the first is kept",
    )


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            "1 1 1 a.JPG\n",
            r"Ebay_train.txt:1: expected the header 'image_id class_id super_class_id path'; found '1 1 1 a",
        ),
        (HEADER + "1 1 1 a.JPG\n2 1 a.JPG\n", r"Ebay_train.txt:3: expected image_id .*; found '2 1 a.JPG'"),
        (HEADER + "1 x 1 a.JPG\n", r"Ebay_train.txt:2: expected .*class_id \(a whole number\)"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, train: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        listed(make(tmp_path, train=train))


def test_a_missing_list_is_named_with_where_it_comes_from(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "Ebay_test.txt").unlink()
    with pytest.raises(
        MissingError, match=r"no Ebay_test.txt in .*found: Ebay_train.txt.*Stanford_Online_Products.zip"
    ):
        listed(tmp_path)
