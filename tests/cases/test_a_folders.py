"""Public reports about folders of images with classes, and about tables of them, by their number in our log."""

from __future__ import annotations

import csv
import io
import os
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hardmine.errors import InputError
from hardmine.pipeline.append import append
from hardmine.pipeline.ingest import IngestReport, ingest
from hardmine.store.patches import PatchStore

NAMES = ["esgle\u0301sia".encode(), "església".encode(), b"caf\xe9", b"it''s \"x\"", b"x_0,0"]


def image(shade: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 5), (shade, 7, 9)).save(buffer, "PNG")
    return buffer.getvalue()


def fill(folder: Path, *names: str | bytes) -> None:
    """Images of these names; the red of each is its place among them."""
    for shade, name in enumerate(names):
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(shade))


def stored(kind: str, src: Path, to: Path, **options: object) -> tuple[PatchStore, IngestReport]:
    report = ingest(kind, src, to, options=options)
    return PatchStore.open(to), report


def reds(store: PatchStore) -> list[int]:
    return [int(pixels[0, 0, 0]) for pixels in store.gather(np.arange(len(store)))]


def test_a09_extensions_in_upper_case(tmp_path: Path) -> None:
    fill(tmp_path / "src", "class/a.JPEG", "class/b.PNG", "class/c.JpG")
    store, _ = stored("folder", tmp_path / "src", tmp_path / "store")
    assert store.source.tolist() == [b"class/a.JPEG", b"class/b.PNG", b"class/c.JpG"]


def test_a10_an_empty_class_folder_is_counted_and_filled_later_without_renumbering(tmp_path: Path) -> None:
    src, folder = tmp_path / "src", tmp_path / "store"
    fill(src, "a/1.png", "c/1.png", "c/2.png")
    (src / "b").mkdir()
    store, report = stored("folder", src, folder)
    assert report.counts["class folders without an image"] == 1
    assert report.counts["classes"] == 2
    before = dict(zip(store.source.tolist(), zip(store.label.tolist(), store.raw_label.tolist(), strict=True)))
    fill(src, "b/1.png")
    append("folder", src, folder)
    after = PatchStore.open(folder)
    now = dict(zip(after.source.tolist(), zip(after.label.tolist(), after.raw_label.tolist(), strict=True)))
    assert now == before | {b"b/1.png": (2, b"b")}


def test_a11_a_class_folder_given_as_the_source_says_what_is_where(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.png", "cat/2.png")
    with pytest.raises(
        InputError, match=r"none of the 2 images of .*cat lies in a class folder: they lie directly in it"
    ):
        ingest("folder", tmp_path / "cat", tmp_path / "store")
    with pytest.raises(InputError, match=r"at most 1 folders below it \(cat/1.png\).*expected 2 below.*depth=1"):
        ingest("folder", tmp_path, tmp_path / "store", options={"depth": 2})
    assert not (tmp_path / "store").exists()


def test_a12_a_filter_that_leaves_nothing_says_so(tmp_path: Path) -> None:
    fill(tmp_path / "src", *(f"c/{i}.png" for i in range(120)))
    options = {"pattern": r"^(?P<label>\w+)/.*\.tiff$"}
    with pytest.raises(InputError, match=r"no image left after pattern .*tiff\$' \(0 of 120 kept"):
        ingest("folder", tmp_path / "src", tmp_path / "store", options=options)


@pytest.mark.parametrize("shards", ["webdataset", "hdf5"])
def test_a14_names_of_folders_and_files_come_back_byte_for_byte(tmp_path: Path, shards: str) -> None:
    fill(tmp_path / "src", *(name + b"/" + name + b".png" for name in NAMES))
    ingest("folder", tmp_path / "src", tmp_path / "store", shards=shards, pictures={"size": "square:5"})
    store = PatchStore.open(tmp_path / "store")
    order = sorted(range(len(NAMES)), key=NAMES.__getitem__)
    assert store.raw_label.tolist() == [NAMES[i] for i in order]
    assert store.source.tolist() == [NAMES[i] + b"/" + NAMES[i] + b".png" for i in order]
    assert reds(store) == order
    keys = [path.name for path in (tmp_path / "store/shards").iterdir()]
    for path in (tmp_path / "store/shards").glob("*.tar"):
        with tarfile.open(path) as tar:
            keys += tar.getnames()
    assert all(re.fullmatch(r"[\w.-]{1,30}", key, re.ASCII) for key in keys), keys


def test_a14_a_table_in_and_a_reject_list_out_keep_the_bytes_too(tmp_path: Path) -> None:
    fill(tmp_path, *(name + b".png" for name in NAMES))
    bad = b"caf\xe9 '', gone.png"
    text = io.StringIO(newline="")
    names = [*(name + b".png" for name in NAMES), bad]
    csv.writer(text).writerows([["path", "label"], *([os.fsdecode(name), "c"] for name in names)])
    (tmp_path / "t.csv").write_bytes(os.fsencode(text.getvalue()))
    store, _ = stored("table", tmp_path / "t.csv", tmp_path / "store")
    assert store.source.tolist() == names[:-1]
    assert store.rejects() == [(bad, "no such file")]


def test_a15_a_comma_in_a_name_is_quoted_one_row_in_one_row_out(tmp_path: Path) -> None:
    fill(tmp_path, "x_0,0.png", "plain.png")
    (tmp_path / "t.csv").write_text('path,label,note\n"x_0,0.png","a, b","say ""hi"""\nplain.png,c,\n')
    store, report = stored("table", tmp_path / "t.csv", tmp_path / "store")
    assert report.counts["items listed"] == len(store) == 2
    assert store.source.tolist() == [b"x_0,0.png", b"plain.png"]
    assert store.raw_label.tolist() == [b"a, b", b"c"]
    note = store.column("note")
    assert note is not None
    assert note.tolist() == [b'say "hi"', b""]
    (tmp_path / "bad.csv").write_text("path,label,note\nx_0,0.png,a,b\n")
    with pytest.raises(InputError, match=r"bad.csv:2: 4 values, where the first row has 3.*must be quoted"):
        ingest("table", tmp_path / "bad.csv", tmp_path / "other")


def test_a17_rows_are_numbered_after_bad_images_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path / "src", *(f"c/{i}.png" for i in range(4)))
    for bad in (1, 3):
        (tmp_path / f"src/c/{bad}.png").write_bytes(image()[:40])
    store, _ = stored("folder", tmp_path / "src", tmp_path / "store")
    assert store.source.tolist() == [b"c/0.png", b"c/2.png"]
    assert reds(store) == [0, 2]
    assert [source for source, _ in store.rejects()] == [b"c/1.png", b"c/3.png"]


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_a18_each_cause_has_its_own_reason(tmp_path: Path, locked: str, kind: str) -> None:
    names = ["corrupt", "good", "locked", "missing", "zero"]
    fill(tmp_path / "c", *(f"{name}.png" for name in names))
    (tmp_path / "c/corrupt.png").write_bytes(b"no image")
    (tmp_path / "c/missing.png").unlink()
    (tmp_path / "c/missing.png").symlink_to(tmp_path / "gone")
    (tmp_path / "c/zero.png").write_bytes(b"")
    (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"c/{name}.png,c\n" for name in names))
    store, report = stored(
        kind, tmp_path if kind == "folder" else tmp_path / "t.csv", tmp_path.with_name(f"a18-{kind}")
    )
    assert store.source.tolist() == [b"c/good.png"]
    reasons = {source: reason.split(" (")[0] for source, reason in store.rejects()}
    assert reasons == {
        b"c/corrupt.png": "not an image, or a damaged one: no known format",
        b"c/locked.png": "no permission to read it",
        b"c/missing.png": "no such file",
        b"c/zero.png": "empty file",
    }
    assert len(report.reasons) == 4
