"""DeepFashion, In-shop Clothes Retrieval (Liu et al.): `train`, and for evaluation `query` against `gallery`, which
share their classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from hardmine.errors import InputError
from hardmine.pipeline.images import printable
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.listing import (
    NUMBER,
    WHOLE,
    WORD,
    Form,
    Listed,
    PictureReader,
    expect_header,
    find_file,
    read_list,
)
from hardmine.pipeline.readers.official import Official, Size

OFFICIAL = Official(
    "inshop",
    Size(52712, 7982),
    {"train": Size(25882, 3997), "query": Size(14218, 3985), "gallery": Size(12612, 3985)},
)
_PARTITION = "list_eval_partition.txt"
_ORIGIN = "it is in the folder Eval of DeepFashion's In-shop Clothes Retrieval Benchmark"
_BOXES = ("Anno/list_bbox_inshop.txt", "list_bbox_inshop.txt")


def _item(word: bytes) -> int:
    if not word.startswith(b"id_"):
        raise ValueError(word)
    return WHOLE.parse(word[3:])


def _status(word: bytes) -> bytes:
    if word.decode("latin1") not in OFFICIAL.splits:
        raise ValueError(word)
    return word


_FIELDS = {
    "image_name": WORD,
    "item_id": Form("id_ and a number", _item),
    "evaluation_status": Form("train, query or gallery", _status),
}
_CORNERS = ("x_1", "y_1", "x_2", "y_2")
_BOX_FIELDS = {"image_name": WORD, "clothes_type": WHOLE, "pose_type": WHOLE} | dict.fromkeys(_CORNERS, NUMBER)


@base.readers.register("inshop")
class InShop(PictureReader):
    """Candidates in order of list_eval_partition.txt (in Eval or beside it); raw_label int64, the number in the
    item_id; source b"img/WOMEN/..." or b"Img/img/WOMEN/...", wherever img lies. Boxes come from list_bbox_inshop.txt
    (in Anno or beside it), where it is there."""

    Options: ClassVar[type[base.Options]] = base.Options  # nothing to choose

    def listed(self) -> Listed:
        """Raises MissingError without the list, InputError for a malformed line (naming it) or a list cut short."""
        path = find_file(self.src, [f"Eval/{_PARTITION}", _PARTITION, f"Anno/{_PARTITION}"], _ORIGIN)
        rows = _counted(path, _FIELDS)
        split, label = rows["evaluation_status"], rows["item_id"]
        counts = OFFICIAL.compare(label, split)
        lists, box = [path], None
        boxes = next((self.src / name for name in _BOXES if (self.src / name).is_file()), None)
        if boxes is not None:
            lists.append(boxes)
            box = _boxes(boxes, rows["image_name"])
        without = len(label) if box is None else int(np.isnan(box[:, 0]).sum())
        if without:
            counts["inshop: images without a bounding box"] = without
        above = b"" if (self.src / "img").is_dir() or not (self.src / "Img").is_dir() else b"Img/"
        return Listed(
            source=[above + name for name in rows["image_name"]],
            raw_label=label,
            where=[f"{path.name}:{line}" for line in rows["line"]],
            split=split,
            lists=lists,
            box=box,
            counts=counts,
        )


def _counted(path: Path, fields: Mapping[str, Form]) -> dict[str, list]:
    """The rows of a list whose first line is their number and whose second is a header."""
    expect_header(path, 2, " ".join(fields))
    (expected,) = read_list(path, {"number of images": WHOLE}, lines=slice(0, 1))["number of images"] or [0]
    rows = read_list(path, fields, lines=slice(2, None))
    if len(rows["line"]) != expected:
        raise InputError(
            f"{printable(path)} has {len(rows['line'])} rows, its first line says {expected}: get it again"
        )
    return rows


def _boxes(path: Path, names: list[bytes]) -> np.ndarray:
    """float64 (N, 4): x1, y1, x2, y2 of each image; NaN where there is none."""
    rows = _counted(path, _BOX_FIELDS)
    box_of = dict(zip(rows["image_name"], zip(*(rows[name] for name in _CORNERS))))
    nothing = (np.nan,) * 4
    return np.array([box_of.get(name, nothing) for name in names], float).reshape(-1, 4)
