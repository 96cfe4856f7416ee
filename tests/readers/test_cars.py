"""Stanford Cars in both of its layouts, on few images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from hardmine.errors import InputError, MissingError
from hardmine.options import Options
from hardmine.pipeline.readers.base import Candidates, Picture, Reject
from hardmine.pipeline.readers.cars import OFFICIAL, Cars

CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


def annotate(path: Path, rows: list[tuple], fields: tuple[str, ...]) -> None:
    """A .mat file whose `annotations` is a 1 x N struct array with these fields, as the originals have it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    struct = np.empty((1, len(rows)), [(name, object) for name in fields])
    for i, row in enumerate(rows):
        for name, value in zip(fields, row, strict=True):
            struct[name][0, i] = value if isinstance(value, str) else np.array([[value]], np.uint16)
    savemat(path, {"annotations": struct, "class_names": np.array([["a", "b"]], object)})


def whole(src: Path) -> Path:
    """cars_annos.mat beside car_ims: classes 1, 98, 99, 196."""
    names = [f"car_ims/{i:06}.jpg" for i in range(1, 5)]
    rows = [(n, 11, 21, 100 + i, 90, c, i % 2) for i, (n, c) in enumerate(zip(names, (1, 98, 99, 196), strict=True))]
    annotate(src / "cars_annos.mat", rows, ("relative_im_path", *CORNERS, "class", "test"))
    (src / "car_ims").mkdir()
    for name in names:
        (src / name).write_bytes(name.encode())
    return src


def apart(src: Path, annotations: str = "devkit", above: str = "") -> Path:
    """The devkit's layout: train and test in folders and files of their own."""
    fields = (*CORNERS, "class", "fname")
    annotate(src / annotations / "cars_train_annos.mat", [(39, 116, 569, 375, 14, "00001.jpg")], fields)
    test = [(30, 52, 246, 147, 181, "00001.jpg"), (1, 1, 4, 3, 98, "00002.jpg")]
    annotate(src / annotations / "cars_test_annos_withlabels.mat", test, fields)
    for name in ("cars_train/00001.jpg", "cars_test/00001.jpg", "cars_test/00002.jpg"):
        folder, file = name.split("/")
        path = src / folder / above.format(folder) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return src


def listed(src: Path) -> Candidates:
    return Cars(src, Options()).candidates()


def test_one_annotation_file(tmp_path: Path) -> None:
    found = listed(whole(tmp_path))
    assert found.raw_label.tolist() == [1, 98, 99, 196]
    assert found.raw_label.dtype == np.int64
    assert found.source.tolist() == [b"car_ims/%06d.jpg" % i for i in range(1, 5)]
    assert found.split is not None
    assert found.split.tolist() == [b"train", b"train", b"test", b"test"]
    assert len(found.files) == 1 + 4


def test_boxes_count_from_one_and_include_both_ends(tmp_path: Path) -> None:
    assert list(Cars(whole(tmp_path), Options()).read([1])) == [
        (1, Picture(b"car_ims/000002.jpg", b"car_ims/000002.jpg", (10.0, 20.0, 101.0, 90.0)))
    ]


@pytest.mark.parametrize("annotations", ["devkit", ""])
@pytest.mark.parametrize("above", ["", "{}"])
def test_train_and_test_apart(tmp_path: Path, annotations: str, above: str) -> None:
    found = listed(apart(tmp_path, annotations, above))
    folder = b"cars_train/cars_train/" if above else b"cars_train/"
    assert found.source.tolist() == [
        folder + b"00001.jpg",
        folder.replace(b"train", b"test") + b"00001.jpg",
        folder.replace(b"train", b"test") + b"00002.jpg",
    ]
    assert found.raw_label.tolist() == [14, 181, 98]
    assert found.split is not None
    assert found.split.tolist() == [b"train", b"test", b"train"]  # by class, not by the folder
    items = [item for _, item in Cars(tmp_path, Options()).read([0, 1, 2])]
    assert [item.content for item in items if isinstance(item, Picture)] == [
        b"cars_train/00001.jpg",
        b"cars_test/00001.jpg",
        b"cars_test/00002.jpg",
    ]
    assert items[2] == Picture(b"cars_test/00002.jpg", bytes(found.source[2]), (0.0, 0.0, 4.0, 3.0))


def test_what_differs_from_the_published_numbers_is_said(tmp_path: Path) -> None:
    counts = listed(whole(tmp_path)).counts
    assert counts["cars: numbers that differ from the published ones"] == 6
    assert counts["cars: images (16,185 expected)"] == 4
    assert counts["cars: images in train (8,054 expected)"] == 2
    assert counts["cars: classes in test (98 expected)"] == 2
    train = [1 + i % 98 for i in range(8054)]
    test = [99 + i % 98 for i in range(8131)]
    assert list(OFFICIAL.compare(train + test, [b"train"] * 8054 + [b"test"] * 8131).values()) == [0]


def test_a_missing_image_is_a_reject_on_reading(tmp_path: Path) -> None:
    whole(tmp_path)
    (tmp_path / "car_ims/000003.jpg").unlink()
    assert list(Cars(tmp_path, Options()).read([2])) == [(2, Reject(b"car_ims/000003.jpg", "no such file"))]


def test_annotations_that_are_missing_damaged_or_without_classes(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no cars_annos.mat in .*cars_test_annos_withlabels.mat"):
        listed(tmp_path)
    apart(tmp_path)
    devkit = tmp_path / "devkit/cars_test_annos_withlabels.mat"
    devkit.rename(devkit.with_name("cars_test_annos.mat"))
    with pytest.raises(MissingError, match=r"no cars_test_annos_withlabels.mat or devkit/.*has no classes"):
        listed(tmp_path)
    annotate(devkit, [(1, 1, 2, 2, "00001.jpg")], (*CORNERS, "fname"))
    with pytest.raises(InputError, match=r"has no annotations with class \(fields: bbox_x1, .*fname\)"):
        listed(tmp_path)
    devkit.write_bytes(devkit.read_bytes()[:300])
    with pytest.raises(InputError, match=r"withlabels.mat cannot be read as a MATLAB file"):
        listed(tmp_path)
    annotate(devkit, [(1, 1, 2, 2, 0, "00001.jpg")], (*CORNERS, "class", "fname"))
    with pytest.raises(InputError, match=r"withlabels.mat: image 1 has class 0"):
        listed(tmp_path)
