"""CUB-200-2011 (Wah et al.): birds. Classes 1 to 100 are `train`, 101 to 200 are `test`, as retrieval papers split it;
the dataset's own train_test_split.txt, made for classification, is not used."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from hardmine.errors import InputError
from hardmine.pipeline.images import printable
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.listing import NUMBER, WHOLE, WORD, Listed, PictureReader, find_file, read_list
from hardmine.pipeline.readers.official import Official, Size

OFFICIAL = Official("cub", Size(11788, 200), {"train": Size(5864, 100), "test": Size(5924, 100)})
TRAIN_CLASSES = 100
_ORIGIN = "it is part of CUB_200_2011.tgz (CUB-200-2011, 11,788 images of 200 classes), in its folder CUB_200_2011"
_IMAGES_2010 = 6033
_WRONG_YEAR = (
    "is CUB-200-2010 (6,033 images), the older release with other images and splits; CUB-200-2011 (11,788 images of "
    "200 classes) is expected"
)


@base.readers.register("cub")
class Cub(PictureReader):
    """Candidates in order of images.txt; raw_label int64, the class number (1 to 200); source b"images/CLASS/NAME.jpg".
    Boxes come from bounding_boxes.txt (x, y, width, height), where it is there."""

    Options: ClassVar[type[base.Options]] = base.Options  # nothing to choose

    def listed(self) -> Listed:
        """Raises MissingError without images.txt or image_class_labels.txt, InputError for CUB-200-2010, a malformed
        line (naming it), or an image number that occurs twice."""
        if not (self.src / "images.txt").is_file() and _is_2010(self.src):
            raise InputError(f"{printable(self.src)} {_WRONG_YEAR}")
        images = find_file(self.src, ["images.txt"], _ORIGIN)
        labels = find_file(self.src, ["image_class_labels.txt"], _ORIGIN)
        boxes = self.src / "bounding_boxes.txt"
        path = read_list(images, {"image_id": WHOLE, "path": WORD})
        if len(path["path"]) == _IMAGES_2010:
            raise InputError(f"{printable(self.src)} {_WRONG_YEAR}")
        _numbered(images, path)
        rows = read_list(labels, {"image_id": WHOLE, "class_id": WHOLE})
        label_of = {image: rows["class_id"][row] for image, row in _numbered(labels, rows).items()}
        kept, label, rejects = [], [], []
        for row, (image, name) in enumerate(zip(path["image_id"], path["path"])):
            if image in label_of:
                kept.append(row)
                label.append(label_of[image])
            else:
                rejects.append(base.Reject(b"images/" + name, f"image {image} has no line in {labels.name}"))
        split = [b"train" if class_id <= TRAIN_CLASSES else b"test" for class_id in label]
        counts = OFFICIAL.compare(label, split)
        lists, box = [images, labels], None
        if boxes.is_file():
            lists.append(boxes)
            box = _boxes(boxes, [path["image_id"][row] for row in kept])
        without = len(kept) if box is None else int(np.isnan(box[:, 0]).sum())
        if without:
            counts["cub: images without a bounding box"] = without
        return Listed(
            source=[b"images/" + path["path"][row] for row in kept],
            raw_label=label,
            where=[f"{images.name}:{path['line'][row]}" for row in kept],
            split=split,
            lists=lists,
            box=box,
            rejects=rejects,
            counts=counts,
        )


def _numbered(path: Path, rows: dict[str, list]) -> dict[int, int]:
    """Row of each image number. Raises InputError naming the line of one that is there already."""
    row_of: dict[int, int] = {}
    for row, image in enumerate(rows["image_id"]):
        if image in row_of:
            first = rows["line"][row_of[image]]
            raise InputError(f"{printable(path)}:{rows['line'][row]}: image {image} is in line {first} already")
        row_of[image] = row
    return row_of


def _boxes(path: Path, images: list[int]) -> np.ndarray:
    """float64 (N, 4): x1, y1, x2, y2 of each image; NaN where there is none."""
    rows = read_list(path, {"image_id": WHOLE, "x": NUMBER, "y": NUMBER, "width": NUMBER, "height": NUMBER})
    row_of = _numbered(path, rows)
    table = np.column_stack([np.array(rows[name], float) for name in ("x", "y", "width", "height")])
    table[:, 2:] += table[:, :2]
    return np.array([table[row_of[image]] if image in row_of else [np.nan] * 4 for image in images]).reshape(-1, 4)


def _is_2010(src: Path) -> bool:
    """Whether `src` is laid out as the release of 2010, or holds its folders side by side."""
    return (src / "lists/files.txt").is_file() or (src / "files.txt").is_file() or (src / "annotations-mat").is_dir()
