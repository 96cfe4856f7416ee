"""Stanford Cars (Krause et al., CARS196): makes and models. Classes 1 to 98 are `train`, 99 to 196 are `test`, as
retrieval papers split it; the dataset's own split, made for classification, is not used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.io import loadmat

from hardmine.errors import InputError
from hardmine.pipeline.images import printable
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.listing import Listed, PictureReader, find_file
from hardmine.pipeline.readers.official import Official, Size

OFFICIAL = Official("cars", Size(16185, 196), {"train": Size(8054, 98), "test": Size(8131, 98)})
TRAIN_CLASSES = 98
_ALL = "cars_annos.mat"
_APART = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
_ORIGIN = (
    f"Stanford Cars is either {_ALL} beside the folder car_ims, or {' and '.join(_APART.values())} (in devkit or "
    "beside it) with the folders cars_train and cars_test; the devkit's own cars_test_annos.mat has no classes"
)
_CORNERS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


@base.readers.register("cars")
class Cars(PictureReader):
    """Candidates in order of cars_annos.mat, or of the devkit's train and test annotations; raw_label int64, the class
    number (1 to 196); source b"car_ims/000001.jpg" or b"cars_train/00001.jpg".

    Boxes are the annotations', which count pixels from 1 and include both ends."""

    Options: ClassVar[type[base.Options]] = base.Options  # nothing to choose

    def listed(self) -> Listed:
        """Raises MissingError without the annotations, InputError where they cannot be read or have no classes."""
        apart = any((self.src / above / name).is_file() for above in ("", "devkit") for name in _APART.values())
        if apart and not (self.src / _ALL).is_file():
            found = {folder: find_file(self.src, [name, f"devkit/{name}"], _ORIGIN) for folder, name in _APART.items()}
            parts = [(path, _annotations(path, "fname"), self._inside(folder)) for folder, path in found.items()]
        else:
            path = find_file(self.src, [_ALL], _ORIGIN)
            parts = [(path, _annotations(path, "relative_im_path"), b"")]
        label = [int(number) for _, annotations, _ in parts for number in annotations["class"]]
        split = [b"train" if number <= TRAIN_CLASSES else b"test" for number in label]
        boxes = np.concatenate([np.column_stack([part[name] for name in _CORNERS]) for _, part, _ in parts])
        return Listed(
            source=[above + os.fsencode(name) for _, part, above in parts for name in part["path"].tolist()],
            raw_label=label,
            where=[f"{path.name}, image {i}" for path, part, _ in parts for i in range(1, len(part["class"]) + 1)],
            split=split,
            lists=[path for path, _, _ in parts],
            box=boxes - [1, 1, 0, 0],
            counts=OFFICIAL.compare(label, split),
        )

    def _inside(self, folder: str) -> bytes:
        """Where the files of cars_train or cars_test lie; some archives unpack to cars_train/cars_train."""
        nested = (self.src / folder / folder).is_dir()
        return f"{folder}/{folder}/".encode() if nested else f"{folder}/".encode()


def _annotations(path: Path, path_field: str) -> dict[str, np.ndarray]:
    """The struct array `annotations`, field by field: "path" as str, the others as float64 (N,). Raises InputError."""
    try:
        content = loadmat(path, squeeze_me=True)
    except MemoryError:
        raise
    except Exception as error:  # the parser raises whatever it likes on damaged files
        raise InputError(f"{printable(path)} cannot be read as a MATLAB file ({error}): get it again") from error
    annotations = np.atleast_1d(content.get("annotations", np.zeros(0)))
    names = annotations.dtype.names or ()
    missing = [name for name in (path_field, *_CORNERS, "class") if name not in names]
    if missing:
        raise InputError(
            f"{printable(path)} has no annotations with {', '.join(missing)} (fields: {', '.join(names) or 'none'}): "
            f"{_ORIGIN}"
        )
    try:
        numbers = {name: np.array([float(value) for value in annotations[name]]) for name in (*_CORNERS, "class")}
    except (TypeError, ValueError) as error:
        raise InputError(f"{printable(path)}: a box or class is not one number ({error})") from error
    wrong = np.flatnonzero((numbers["class"] < 1) | (numbers["class"] != np.rint(numbers["class"])))
    if len(wrong):
        raise InputError(f"{printable(path)}: image {wrong[0] + 1} has class {numbers['class'][wrong[0]]:g}")
    return numbers | {"path": np.array([str(name) for name in annotations[path_field]])}
