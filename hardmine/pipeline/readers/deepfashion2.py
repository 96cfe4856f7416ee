"""DeepFashion2 (Ge et al.), for finding a customer's garment in a shop: one item per annotated garment, with its box.

Folders train and validation, each with image/NNNNNN.jpg and annos/NNNNNN.json: `source` ("user" or "shop") and
`pair_id` of the image, then item1, item2, ... with `style`, `category_id` and `bounding_box`. Two garments are the same
if they have one pair_id and one style greater than 0. The labels of the test set were never published.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import numpy as np

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.images import ImageError, printable, read_bytes
from hardmine.pipeline.readers import base

ROLES = ("user", "shop")  # the values of the column `role`
USER, SHOP = range(len(ROLES))
PARTS = ("train", "validation")
# Of the validation set. The garments are those of the paper's table of statistics; releases have been smaller.
PUBLISHED = {"images of users": 10844, "images of shops": 20681, "queries": 12550, "gallery": 37183}
_ITEM = re.compile(r"item([1-9][0-9]*)")
_IMAGE = (b".jpg", b".jpeg")
_EXPECTED = "the unpacked DeepFashion2: train and validation, each with the folders image and annos"


@dataclass(frozen=True)
class _Garment:
    """One item: the number of its image, its own in it (item1 is 1), and what is said of it."""

    image: int
    item: int
    part: str
    role: int
    pair: int
    style: int
    category: int
    box: tuple[float, float, float, float]


@base.readers.register("deepfashion2")
class DeepFashion2:
    """Candidates in order of part (train, validation), image (byte-sorted), item.

    raw_label is b"validation/000123/2" (part, pair_id, style). A garment of style 0 is the same as no other, not even
    of its own pair_id, so it is a class by itself: b"validation/000123/0/000456/item1" (with image and item). source
    is b"validation/image/000456.jpg#item1". Split: `train` is all of train; of validation, users' garments with a style
    are `query`, those of style 0 are stored in no split, and all garments of shops, style 0 included, are `gallery`.
    Columns: `image` int64, the image's number among all listed; `role` int64 (0 user, 1 shop); `pair`, `style`,
    `category` int64 as annotated; `box` float32 (N, 4), x1, y1, x2, y2 in pixels of the photograph. Garments are cut
    out of their photographs unless the picture option `crop` says otherwise.
    """

    Options: ClassVar[type[base.Options]] = base.Options  # nothing to choose

    def __init__(self, src: Path, options: base.Options) -> None:
        self.src, self.options = Path(src), options
        self._names: list[bytes] = []  # of the images, below src
        self._items: np.ndarray | None = None  # int64 (N, 2): image, item
        self._boxes = np.zeros((0, 4))

    def candidates(self) -> base.Candidates:
        """Read every annotation. Raises MissingError without train and validation, InputError where one is another
        layout. An annotation that cannot be used, or lacks its image, is a Reject; so is an image without one."""
        parts = self._parts()
        garments: list[_Garment] = []
        rejects: list[base.Reject] = []
        files: list[Path] = []
        counts: Counter[str] = Counter()
        self._names = []
        for part in parts:
            images, annotations = self._files(part, counts)
            for stem in sorted(images.keys() | annotations.keys()):
                if stem not in annotations:
                    reason = f"annos/{printable(stem)}.json is missing"
                    rejects.append(base.Reject(b"%b/image/%b" % (part.encode(), images[stem]), reason))
                    continue
                path = self.src / part / "annos" / os.fsdecode(annotations[stem])
                files.append(path)
                name = b"%b/annos/%b" % (part.encode(), annotations[stem])
                if stem not in images:
                    rejects.append(base.Reject(name, f"image/{printable(stem)}.jpg is missing"))
                    continue
                try:
                    role, pair, items = _annotation(path)
                except ImageError as error:
                    rejects.append(base.Reject(name, error.reason))
                    continue
                counts[f"deepfashion2: images of {ROLES[role]}s in {part}"] += 1
                number = len(self._names)
                self._names.append(b"%b/image/%b" % (part.encode(), images[stem]))
                files.append(self.src / os.fsdecode(self._names[number]))
                for item, content in items.items():
                    try:
                        style, category, box = _item(content)
                        garments.append(_Garment(number, item, part, role, pair, style, category, box))
                    except ValueError as error:
                        rejects.append(base.Reject(self._source(number, item), str(error)))
        return self._gather(parts, garments, rejects, files, counts)

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, base.Picture | base.Reject]]:
        """Yield (number, the garment's photograph with its box) in order; a Reject where it cannot be read."""
        if self._items is None:
            self.candidates()
        assert self._items is not None  # candidates() sets it
        before, content, reason = -1, b"", ""
        for number in np.asarray(numbers, np.int64).tolist():
            image, item = self._items[number].tolist()
            if image != before:  # garments of one photograph follow each other
                try:
                    content, reason = read_bytes(self.src / os.fsdecode(self._names[image])), ""
                except ImageError as error:
                    content, reason = b"", error.reason
                before = image
            if reason:
                yield number, base.Reject(self._source(image, item), reason)
            else:
                x1, y1, x2, y2 = self._boxes[number].tolist()
                yield number, base.Picture(content, self._source(image, item), (x1, y1, x2, y2))

    def _gather(
        self,
        parts: list[str],
        garments: list[_Garment],
        rejects: list[base.Reject],
        files: list[Path],
        counts: Counter[str],
    ) -> base.Candidates:
        self._items = np.array([(g.image, g.item) for g in garments], np.int64).reshape(-1, 2)
        self._boxes = np.array([g.box for g in garments], np.float64).reshape(-1, 4)
        columns = {
            name: np.array([getattr(g, name) for g in garments], np.int64)
            for name in ("image", "role", "pair", "style", "category")
        }
        split = [_split(g) for g in garments]
        said = {f"deepfashion2: {part} is not there": 1 for part in PARTS if part not in parts}
        if "validation" in parts:
            found = {
                "images of users": counts.pop("deepfashion2: images of users in validation", 0),
                "images of shops": counts.pop("deepfashion2: images of shops in validation", 0),
                "queries": split.count(b"query"),
                "gallery": split.count(b"gallery"),
            }
            for what, number in found.items():
                said[f"deepfashion2: {what} in validation ({PUBLISHED[what]:,} published)"] = number
            said["deepfashion2: garments of users without a style in validation, stored in no split"] = split.count(b"")
        return base.Candidates(
            raw_label=np.array([self._label(g) for g in garments], np.bytes_),
            source=np.array([self._source(g.image, g.item) for g in garments], np.bytes_),
            pixel_shape=None,
            columns=columns | {"box": self._boxes.astype(np.float32)},
            rejects=rejects,
            counts=said | counts,
            files=files,
            split=np.array(split, "S7"),
            crop=True,
        )

    def _label(self, garment: _Garment) -> bytes:
        label = b"%b/%06d/%d" % (garment.part.encode(), garment.pair, garment.style)
        if garment.style:
            return label
        stem = os.path.splitext(os.path.basename(self._names[garment.image]))[0]
        return b"%b/%b/item%d" % (label, stem, garment.item)

    def _source(self, image: int, item: int) -> bytes:
        return b"%b#item%d" % (self._names[image], item)

    def _parts(self) -> list[str]:
        """Which of train and validation are there. Raises MissingError for neither."""
        parts = [part for part in PARTS if (self.src / part).is_dir()]
        if parts:
            return parts
        if not self.src.is_dir():
            raise MissingError(f"no folder {printable(self.src)}: expected {_EXPECTED}")
        names = sorted(path.name for path in self.src.iterdir() if not path.name.startswith("."))
        found = ", ".join(map(printable, names[:5])) + (", ..." if len(names) > 5 else "")
        advice = " This is one part of it: give the folder that it is in." if "annos" in names else ""
        raise MissingError(
            f"no train and no validation in {printable(self.src)} (found: {found or 'nothing'}): expected "
            f"{_EXPECTED}.{advice}"
        )

    def _files(self, part: str, counts: Counter[str]) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """The images and annotations of a part: names without extension to names. Dot files and others are counted."""
        found = []
        for folder, endings in (("image", _IMAGE), ("annos", (b".json",))):
            path = self.src / part / folder
            try:
                there = sorted(os.listdir(os.fsencode(path)))
            except FileNotFoundError:
                raise MissingError(f"no folder {printable(path)}: expected {_EXPECTED}") from None
            except OSError as error:
                raise InputError(f"{printable(path)}: cannot list this folder ({error.strerror or error})") from error
            visible = [name for name in there if not name.startswith(b".")]
            files = {os.path.splitext(n)[0]: n for n in visible if os.path.splitext(n)[1].lower() in endings}
            for what, number in (
                ("dot files skipped", len(there) - len(visible)),
                ("other files skipped", len(visible) - len(files)),
            ):
                if number:
                    counts[what] += number
            found.append(files)
        return found[0], found[1]


def _split(garment: _Garment) -> bytes:
    if garment.part == "train":
        return b"train"
    if garment.role == SHOP:
        return b"gallery"
    return b"query" if garment.style else b""


def _annotation(path: Path) -> tuple[int, int, dict[int, Any]]:
    """role, pair_id, and the items by number. Raises ImageError where the file cannot be used."""
    try:
        content = json.loads(read_bytes(path))
    except ValueError as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(path, f"is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ImageError(path, "is no annotation (a JSON object with source, pair_id, item1, ... is expected)")
    source, pair = content.get("source"), content.get("pair_id")
    if source not in ROLES:
        raise ImageError(path, f"source is {source!r}, not 'user' or 'shop'")
    if not _is_whole(pair):
        raise ImageError(path, f"pair_id is {pair!r}, not a whole number")
    items = {int(match[1]): value for key, value in content.items() if (match := _ITEM.fullmatch(key))}
    if not items:
        raise ImageError(path, "has no item1: no garment is annotated")
    return ROLES.index(source), pair, dict(sorted(items.items()))


def _item(content: Any) -> tuple[int, int, tuple[float, float, float, float]]:
    """style, category_id, box. Raises ValueError saying which of them cannot be used."""
    if not isinstance(content, dict):
        raise ValueError(f"the item is {type(content).__name__}, not an object")
    style, category, box = (content.get(name) for name in ("style", "category_id", "bounding_box"))
    if not _is_whole(style):
        raise ValueError(f"style is {style!r}, not a whole number")
    if not _is_whole(category):
        raise ValueError(f"category_id is {category!r}, not a whole number")
    if not (
        isinstance(box, list)
        and len(box) == 4
        and all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e6 for v in box)
    ):
        raise ValueError(f"bounding_box is {box!r}, not [x1, y1, x2, y2]")
    x1, y1, x2, y2 = map(float, box)
    if not (x1 < x2 and y1 < y2):
        raise ValueError(f"bounding_box {box} is empty")
    return style, category, (x1, y1, x2, y2)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
