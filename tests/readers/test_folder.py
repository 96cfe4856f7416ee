"""Class folders of any depth, and layouts described by a regular expression."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError, MissingError
from hardmine.options import check
from hardmine.pipeline.readers.base import Candidates, Picture, Reject
from hardmine.pipeline.readers.folder import Folder, FolderOptions


def fill(folder: Path, *names: str) -> None:
    """Files of these names, each holding its own name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.fsencode(name))


def listed(src: Path, **options: object) -> Candidates:
    return Folder(src, check(FolderOptions, options, "options")).candidates()


def test_a_class_is_the_first_folder_below_the_source(tmp_path: Path) -> None:
    fill(tmp_path, "dog/b.png", "cat/b.jpg", "cat/a.JPG", "cat/inner/c.png", "cat/notes.txt")
    found = listed(tmp_path)
    assert found.source.tolist() == [b"cat/a.JPG", b"cat/b.jpg", b"cat/inner/c.png", b"dog/b.png"]
    assert found.raw_label.tolist() == [b"cat", b"cat", b"cat", b"dog"]
    assert (found.pixel_shape, found.split, found.rejects) == (None, None, [])
    assert found.counts == {"other files skipped": 1}
    assert [p.relative_to(tmp_path).as_posix().encode() for p in found.files] == found.source.tolist()


def test_read_gives_the_file_as_it_is_or_the_reason(tmp_path: Path) -> None:
    fill(tmp_path, "cat/a.png", "cat/b.png", "dog/c.png")
    reader = Folder(tmp_path, FolderOptions())
    reader.candidates()
    (tmp_path / "cat/b.png").unlink()
    (tmp_path / "dog/c.png").write_bytes(b"")
    assert list(reader.read([])) == []
    assert list(reader.read(np.array([0, 1, 2]))) == [
        (0, Picture(b"cat/a.png", b"cat/a.png", None)),
        (1, Reject(b"cat/b.png", "no such file")),
        (2, Reject(b"dog/c.png", "empty file (0 bytes)")),
    ]
    assert list(Folder(tmp_path, FolderOptions()).read([0])) == [(0, Picture(b"cat/a.png", b"cat/a.png", None))]


def test_a_reader_goes_to_another_process_with_its_list(tmp_path: Path) -> None:
    fill(tmp_path, "cat/a.png", "dog/c.png")
    reader = Folder(tmp_path, FolderOptions())
    reader.candidates()
    fill(tmp_path, "ant/new.png")
    there = pickle.loads(pickle.dumps(reader))
    assert list(there.read([1])) == [(1, Picture(b"dog/c.png", b"dog/c.png", None))]


def test_deeper_classes_carry_the_names_above_them(tmp_path: Path) -> None:
    fill(tmp_path, "Greek/character01/a.png", "Latin/character01/a.png", "Latin/readme/b.png", "Latin/above.png")
    found = listed(tmp_path, depth=2)
    assert found.raw_label.tolist() == [b"Greek/character01", b"Latin/character01", b"Latin/readme"]
    assert found.rejects == [Reject(b"Latin/above.png", "lies above the class folders, which are 2 below the source")]


@pytest.mark.parametrize(
    ("depth", "split_depth", "name", "label"),
    [(2, 1, "train/cat/a.png", b"cat"), (2, 2, "cat/train/a.png", b"cat"), (3, 1, "train/big/cat/a.png", b"big/cat")],
)
def test_one_level_may_be_the_split(tmp_path: Path, depth: int, split_depth: int, name: str, label: bytes) -> None:
    fill(tmp_path, name, name.replace("train", "test"))
    found = listed(tmp_path, depth=depth, split_depth=split_depth)
    assert found.raw_label.tolist() == [label, label]
    assert found.split is not None
    assert found.split.tolist() == [b"test", b"train"]


def test_splits_taken_for_classes_are_mentioned(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat/a.png", "test/dog/b.png")
    note = "class folders named like a split (depth=2 split_depth=1 takes them as such)"
    assert listed(tmp_path).counts == {note: 2}
    assert listed(tmp_path, depth=2, split_depth=1).counts == {}


def test_empty_class_folders_are_counted_at_the_depth_of_classes(tmp_path: Path) -> None:
    fill(tmp_path, "a/x/1.png")
    for name in ("a/y", "b", "c/z"):
        (tmp_path / name).mkdir(parents=True)
    assert listed(tmp_path).counts == {"class folders without an image": 2}  # b and c
    assert listed(tmp_path, depth=2).counts == {"class folders without an image": 2}  # a/y and c/z


def test_a_pattern_takes_class_split_and_camera_from_the_path(tmp_path: Path) -> None:
    fill(tmp_path, "train/0002_c1s1.jpg", "train/0007_c6s2.jpg", "query/0007_c2s1.jpg", "query/Thumbs_c1.jpg")
    found = listed(tmp_path, pattern=r"^(?P<split>\w+)/(?P<label>\d+)_c(?P<camera>\d)")
    assert found.source.tolist() == [b"query/0007_c2s1.jpg", b"train/0002_c1s1.jpg", b"train/0007_c6s2.jpg"]
    assert found.raw_label.tolist() == [b"0007", b"0002", b"0007"]
    assert found.split is not None
    assert found.split.tolist() == [b"query", b"train", b"train"]
    assert found.columns["camera"].dtype == np.int64
    assert found.columns["camera"].tolist() == [2, 1, 6]
    assert found.counts == {"images that the pattern does not match": 1}


def test_a_pattern_may_leave_groups_out(tmp_path: Path) -> None:
    fill(tmp_path, "x-cat.png", "y-.png", "val/z-dog.png")
    found = listed(tmp_path, pattern=r"^((?P<split>\w+)/)?\w-(?P<label>\w*)")
    assert (found.raw_label.tolist(), found.columns) == ([b"dog", b"cat"], {})
    assert found.split is not None
    assert found.split.tolist() == [b"val", b""]
    assert found.rejects == [Reject(b"y-.png", "the pattern leaves its label empty")]
    assert listed(tmp_path, pattern=r"(?P<label>cat|dog)").split is None


def test_labels_that_are_no_utf8_come_back_byte_for_byte(tmp_path: Path) -> None:
    fill(tmp_path, os.fsdecode(b"caf\xe9/a.png"))
    assert listed(tmp_path).raw_label.tolist() == [b"caf\xe9"]
    assert listed(tmp_path, pattern="(?P<label>.*)/").raw_label.tolist() == [b"caf\xe9"]


def test_linked_class_folders_are_not_followed_and_counted(tmp_path: Path) -> None:
    fill(tmp_path, "src/cat/a.png", "elsewhere/b.png")
    (tmp_path / "src/dog").symlink_to(tmp_path / "elsewhere")
    assert listed(tmp_path / "src").counts == {"linked folders not followed": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth"),
        ({"pattern": "("}, "pattern: .*not a regular expression"),
        ({"pattern": "(?P<split>a)"}, r"pattern: .*a group \(\?P<label>\.\.\.\) is needed"),
        ({"pattern": "(?P<label>a)(?P<colour>b)"}, "are the only others"),
        ({"pattern": "(?P<label>a)", "depth": 1}, "either pattern, or depth"),
        ({"split_depth": 1}, "depth, which must then be 2 or more"),
        ({"split_depth": 3, "depth": 2}, "split_depth is a level down to depth"),
    ],
)
def test_options_that_cannot_be_meant(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        listed(tmp_path, **options)


def test_what_is_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="gone is not a folder"):
        listed(tmp_path / "gone")
    fill(tmp_path, "cat/a.png")
    with pytest.raises(InputError, match=r"cat/a.png: the pattern's camera is 'a'; a whole number is expected"):
        listed(tmp_path, pattern="(?P<label>cat)/(?P<camera>.)")
