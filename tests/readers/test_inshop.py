"""DeepFashion In-shop in its own layout, on few images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError, MissingError
from hardmine.options import Options
from hardmine.pipeline.readers.base import Candidates, Picture
from hardmine.pipeline.readers.inshop import OFFICIAL, InShop

ROWS = [
    ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
    ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train"),
    ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "query"),
    ("img/MEN/Denim/id_00000080/01_7_additional.jpg", "id_00000080", "gallery"),
]


def make(src: Path, lists: str = "Eval", images: str = "Img", boxes: str | None = "Anno", count: int = 4) -> Path:
    """The benchmark as unpacked: columns separated by runs of spaces, the number of rows above them."""
    (src / lists).mkdir(parents=True, exist_ok=True)
    header = "image_name                        item_id      evaluation_status\n"
    body = "".join(f"{name:60} {item}   {status}\n" for name, item, status in ROWS)
    (src / lists / "list_eval_partition.txt").write_text(f"{count}\n{header}{body}")
    if boxes is not None:
        (src / boxes).mkdir(exist_ok=True)
        body = "".join(f"{name:60} 3   {i}   0{i:02} 018  250  253\n" for i, (name, _, _) in enumerate(ROWS[:3]))
        header = "image_name  clothes_type  pose_type  x_1  y_1  x_2  y_2\n"
        (src / boxes / "list_bbox_inshop.txt").write_text(f"3\n{header}{body}")
    for name, _, _ in ROWS:
        (src / images / name).parent.mkdir(parents=True, exist_ok=True)
        (src / images / name).write_bytes(name.encode())
    return src


def listed(src: Path) -> Candidates:
    return InShop(src, Options()).candidates()


@pytest.mark.parametrize("lists", ["Eval", "", "Anno"])
@pytest.mark.parametrize("images", ["Img", ""])
@pytest.mark.parametrize("boxes", ["Anno", "", None])
def test_lists_and_images_where_archives_put_them(tmp_path: Path, lists: str, images: str, boxes: str | None) -> None:
    found = listed(make(tmp_path, lists, images, boxes))
    above = b"Img/" if images else b""
    assert found.source.tolist() == [above + name.encode() for name, _, _ in ROWS]
    assert found.raw_label.tolist() == [2, 2, 80, 80]
    assert found.raw_label.dtype == np.int64
    assert found.split is not None
    assert found.split.tolist() == [b"train", b"train", b"query", b"gallery"]
    assert found.counts["inshop: images without a bounding box"] == (4 if boxes is None else 1)
    items = [item for _, item in InShop(tmp_path, Options()).read([1, 3])]
    box = None if boxes is None else (1.0, 18.0, 250.0, 253.0)
    assert items == [
        Picture(ROWS[1][0].encode(), above + ROWS[1][0].encode(), box),
        Picture(ROWS[3][0].encode(), above + ROWS[3][0].encode(), None),
    ]


def test_what_differs_from_the_published_numbers_is_said(tmp_path: Path) -> None:
    counts = listed(make(tmp_path)).counts
    assert counts["inshop: numbers that differ from the published ones"] == 8
    assert counts["inshop: images (52,712 expected)"] == 4
    assert counts["inshop: classes (7,982 expected)"] == 2
    assert counts["inshop: images in query (14,218 expected)"] == 1
    assert counts["inshop: classes in gallery (3,985 expected)"] == 1
    label = [i % 3997 for i in range(25882)]
    label += [5000 + i % 3985 for i in range(14218)] + [5000 + i % 3985 for i in range(12612)]
    split = [b"train"] * 25882 + [b"query"] * 14218 + [b"gallery"] * 12612
    assert list(OFFICIAL.compare(label, split).values()) == [0]


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (1, "image item status", r"partition.txt:2: expected the header 'image_name item_id evaluation_status'; found"),
        (2, "a.jpg 00000002 train", r"partition.txt:3: expected .*item_id \(id_ and a number\)"),
        (3, "a.jpg id_2 val", r"partition.txt:4: expected .*evaluation_status \(train, query or gallery\)"),
        (0, "5", r"partition.txt has 4 rows, its first line says 5"),
        (0, "", r"partition.txt has 4 rows, its first line says 0"),
        (0, "x", r"partition.txt:1: expected number of images \(a whole number\); found 'x'"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, line: int, text: str, message: str) -> None:
    path = make(tmp_path) / "Eval/list_eval_partition.txt"
    lines = path.read_text().splitlines()
    lines[line] = text
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        listed(tmp_path)


def test_boxes_cut_short(tmp_path: Path) -> None:
    path = make(tmp_path) / "Anno/list_bbox_inshop.txt"
    path.write_text(path.read_text().rsplit("\n", 2)[0] + "\n")
    with pytest.raises(InputError, match=r"list_bbox_inshop.txt has 2 rows, its first line says 3"):
        listed(tmp_path)


def test_a_missing_list_is_named_with_where_it_comes_from(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "Eval/list_eval_partition.txt").unlink()
    with pytest.raises(MissingError, match=r"no Eval/list_eval_partition.txt or .*folder Eval of DeepFashion"):
        listed(tmp_path)
