"""Stanford Online Products (Song et al.): photographs of products on sale, split by product."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.listing import WHOLE, WORD, Listed, PictureReader, expect_header, find_file, read_list
from hardmine.pipeline.readers.official import Official, Size

OFFICIAL = Official("sop", Size(120053, 22634), {"train": Size(59551, 11318), "test": Size(60502, 11316)})
_ORIGIN = "it is part of Stanford_Online_Products.zip, beside the folders bicycle_final, cabinet_final, ..."
_FIELDS = {"image_id": WHOLE, "class_id": WHOLE, "super_class_id": WHOLE, "path": WORD}
_HEADER = " ".join(_FIELDS)


@base.readers.register("sop")
class Sop(PictureReader):
    """Candidates in order of Ebay_train.txt, then Ebay_test.txt; raw_label int64, the class_id (from 1); column
    super_class int64, the super_class_id (1 to 12: bicycle, cabinet, ...); source b"bicycle_final/NAME.JPG"."""

    Options: ClassVar[type[base.Options]] = base.Options  # nothing to choose

    def listed(self) -> Listed:
        """Raises MissingError without one of the lists, InputError for a malformed line, naming it."""
        lists, where, split = [], [], []
        rows: dict[str, list] = {"line": []} | {name: [] for name in _FIELDS}
        for name in ("train", "test"):
            path = find_file(self.src, [f"Ebay_{name}.txt"], _ORIGIN)
            expect_header(path, 1, _HEADER)
            part = read_list(path, _FIELDS, lines=slice(1, None))
            lists.append(path)
            for field, values in part.items():
                rows[field] += values
            where += [f"{path.name}:{line}" for line in part["line"]]
            split += [name.encode()] * len(part["path"])
        return Listed(
            source=rows["path"],
            raw_label=rows["class_id"],
            where=where,
            split=split,
            lists=lists,
            columns={"super_class": np.array(rows["super_class_id"], np.int64)},
            counts=OFFICIAL.compare(rows["class_id"], split),
        )
