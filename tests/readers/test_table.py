"""Tables of image files: CSV with a header, and lists without one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.options import check
from hardmine.pipeline.readers.base import Candidates, Picture, Reject
from hardmine.pipeline.readers.table import Table, TableOptions


def reader(src: Path, **options: object) -> Table:
    return Table(src, check(TableOptions, options, "options"))


def listed(folder: Path, content: str | bytes, **options: object) -> Candidates:
    (folder / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return reader(folder / "t.csv", **options).candidates()


def test_path_label_and_split_by_name(tmp_path: Path) -> None:
    found = listed(tmp_path, "split,label,path\ntrain,cat,b/2.png\ntest,dog,./1.png\r\n\ntrain,cat,3.png\n")
    assert found.source.tolist() == [b"b/2.png", b"1.png", b"3.png"]
    assert found.raw_label.tolist() == [b"cat", b"dog", b"cat"]
    assert found.split is not None
    assert found.split.tolist() == [b"train", b"test", b"train"]
    assert (found.pixel_shape, found.columns, found.rejects) == (None, {}, [])
    assert found.files == [tmp_path / "t.csv"]


def test_read_takes_paths_from_the_tables_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"pixels")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "zero.png").write_bytes(b"")
    (tmp_path / "t.csv").write_text("path,label\na.png,1\ngone.png,1\nzero.png,1\nfolder.png,1\n")
    items = [item for _, item in reader(tmp_path / "t.csv").read(range(4))]
    assert items[0] == Picture(b"pixels", b"a.png")
    assert [item.reason for item in items[1:] if isinstance(item, Reject)] == [
        "no such file",
        "empty file (0 bytes)",
        "a folder, not a file",
    ]
    assert reader(tmp_path / "t.csv").candidates().files == [
        tmp_path / n for n in ("t.csv", "a.png", "zero.png", "folder.png")
    ]


def test_a_root_and_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/a.png").write_bytes(b"a")
    found = listed(tmp_path / "lists", f"path,label\na.png,1\n{tmp_path}/pictures/b.png,1\n", root="../pictures")
    assert found.source.tolist() == [b"../pictures/a.png", b"../pictures/b.png"]
    assert list(reader(tmp_path / "lists/t.csv", root="../pictures").read([0])) == [
        (0, Picture(b"a", b"../pictures/a.png"))
    ]
    assert listed(tmp_path, "path,label\na.png,1\n", root=str(tmp_path / "x")).source.tolist() == [b"x/a.png"]


def test_other_names_of_the_columns(tmp_path: Path) -> None:
    found = listed(tmp_path, "file,id,set\na.png,7,t\n", path_column="file", label_column="id", split_column="set")
    assert (found.source.tolist(), found.raw_label.tolist()) == ([b"a.png"], [b"7"])
    assert found.split is not None
    assert found.split.tolist() == [b"t"]
    assert listed(tmp_path, "path,label,split\na.png,7,t\n", split_column="label", label_column="split").columns == {}


def test_lists_without_a_header(tmp_path: Path) -> None:
    content = "a/1.png, 0, 10\na/2.png, 0, 11\n"
    found = listed(tmp_path, content, header=False)
    assert (found.source.tolist(), found.raw_label.tolist()) == ([b"a/1.png", b"a/2.png"], [b"0", b"0"])
    assert found.columns["column_3"].tolist() == [10, 11]
    coarse = listed(tmp_path, content, header=False, label_column=3)
    assert (coarse.raw_label.tolist(), coarse.columns["column_2"].tolist()) == ([b"10", b"11"], [0, 0])


@pytest.mark.parametrize(
    ("delimiter", "text"),
    [("space", " a.png   007 \nb.png\t7\n\n"), ("tab", "a.png\t007\nb.png\t7"), (";", "a.png;007\nb.png; 7\n")],
)
def test_other_delimiters(tmp_path: Path, delimiter: str, text: str) -> None:
    found = listed(tmp_path, text, header=False, delimiter=delimiter)
    assert (found.source.tolist(), found.raw_label.tolist()) == ([b"a.png", b"b.png"], [b"007", b"7"])


def test_several_tables_are_splits_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a.png 0\nb.png 1\n")
    (tmp_path / "test.txt").write_text("c.png 2\n")
    options = {"header": False, "delimiter": "space"}
    found = reader(tmp_path, files="train.txt,test.txt", **options).candidates()
    assert found.source.tolist() == [b"a.png", b"b.png", b"c.png"]
    assert found.split is not None
    assert found.split.tolist() == [b"train", b"train", b"test"]
    assert reader(tmp_path, files=["train.txt"], **options).candidates().split is None
    (tmp_path / "test.txt").write_text("c.png 2 x\n")
    with pytest.raises(InputError, match=r"test.txt has other columns than .*train.txt"):
        reader(tmp_path, files="train.txt,test.txt", **options).candidates()


def test_further_columns_get_the_narrowest_type_that_keeps_them(tmp_path: Path) -> None:
    found = listed(
        tmp_path,
        "path,label,whole,code,real,gaps,word,none,big,number\n"
        "a,1,-3,007,1.5,,x,,1,\n"
        "b,1,0,7,-2e3,4,y y,,99999999999999999999,16777217\n",
    )
    columns = found.columns
    assert {name: values.dtype.kind for name, values in columns.items()} == {
        "whole": "i",
        "code": "S",
        "real": "f",
        "gaps": "f",
        "word": "S",
        "none": "S",
        "big": "S",
        "number": "S",
    }
    assert columns["whole"].tolist() == [-3, 0]
    assert columns["code"].tolist() == [b"007", b"7"]
    assert columns["real"].dtype == np.float32
    assert columns["real"].tolist() == [1.5, -2000.0]
    assert np.isnan(columns["gaps"][0])
    assert columns["word"].tolist() == [b"x", b"y y"]


def test_names_of_columns_are_made_safe(tmp_path: Path) -> None:
    found = listed(tmp_path, "path,label,Class ID (int),class_id_int,source,,camera,frame,image\na,1,1,2,3,4,5,6,x\n")
    assert list(found.columns) == [
        "Class_ID_int",
        "class_id_int_2",
        "source_2",
        "column_4",
        "camera",
        "frame_2",
        "image_2",
    ]
    assert found.counts["values of column 'Class ID (int)', stored as 'Class_ID_int'"] == 1
    assert "camera" not in str(found.counts)


def test_an_item_listed_again_is_a_reject_that_says_where(tmp_path: Path) -> None:
    found = listed(tmp_path, "path,label,n\na,1,5\nb,2,6\n./a,1,7\nb,3,8\n")
    assert (found.source.tolist(), found.columns["n"].tolist()) == ([b"a", b"b"], [5, 6])
    assert found.rejects == [
        Reject(b"a", "listed again in t.csv:4 (first: t.csv:2); the first is kept"),
        Reject(b"b", "listed again in t.csv:5 (first: t.csv:3), as class 3 after class 2; the first is kept"),
    ]


def test_rows_without_a_path_or_label_are_rejects(tmp_path: Path) -> None:
    found = listed(tmp_path, "path,label\n,1\na,\nb,2\n")
    assert found.source.tolist() == [b"b"]
    assert found.rejects == [Reject(b"t.csv:2", "no path in this row"), Reject(b"a", "no label in t.csv:3")]
    with pytest.raises(InputError, match=r"lists no usable image \(a: no label in t.csv:2\)"):
        listed(tmp_path, "path,label\na,\n")
    with pytest.raises(InputError, match="lists no usable image"):
        listed(tmp_path, "path,label\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty file"),
        ("\n\n", "has no row"),
        ("path,label\na,b,c\n", r"t.csv:2: 3 values, where the first row has 2; .* quoted"),
        ("path,label\nx,1\na\n", r"t.csv:3: 1 values"),
        ('path,label\n"a,1\nb,2\n', r"t.csv:\d: unexpected end of data"),
        ('path,label\n"a"b,1\n', r"t.csv:2: "),
        ("a.png,1\n", r"has no column 'path' \(its columns: 'a.png', '1'\): give path_column, or header=false"),
        ("path,class\n", r"has no column 'label'.*label_column"),
        ("path,label,x,x\n", "two columns 'x'"),
        ("path,label\na,1\n".encode("utf-16"), "zero bytes, as UTF-16"),
    ],
)
def test_malformed_tables_name_the_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        listed(tmp_path, content)


def test_names_that_are_no_utf8_and_a_byte_order_mark(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    (tmp_path / name).write_bytes(b"x")
    found = listed(tmp_path, b"\xef\xbb\xbfpath,label\ncaf\xe9.png,\xe9\n")
    assert (found.source.tolist(), found.raw_label.tolist()) == ([b"caf\xe9.png"], [b"\xe9"])
    assert list(reader(tmp_path / "t.csv").read([0])) == [(0, Picture(b"x", b"caf\xe9.png"))]


def test_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder: give the table itself, or files=NAME.csv"):
        reader(tmp_path).candidates()
    with pytest.raises(MissingError, match=r"no table .*gone.csv"):
        reader(tmp_path, files="gone.csv").candidates()
    with pytest.raises(InputError, match=r"delimiter: .*one of comma"):
        reader(tmp_path, delimiter="ab")
    with pytest.raises(UnknownNameError, match="split_column"):
        reader(tmp_path, split_colum="x")
