"""The folder layout of image sequences with homographies, as HPatches and the Oxford regions set name them.

A sequence is a folder with images 1.EXT, 2.EXT, ... or img1.EXT, ... and text files H_1_k or H1tokp: nine numbers, row
by row, of the homography that maps pixel (x, y, 1) of image 1 to image k.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.images import EXTENSIONS, ImageError, printable, read_bytes, relative_name
from hardmine.pipeline.readers.base import Reject

_IMAGE = re.compile(r"(?:img)?(\d+)(\.\w+)", re.IGNORECASE)
_HOMOGRAPHY = re.compile(r"H_1_(\d+)|H1to(\d+)p", re.IGNORECASE)
EXPECTED = "1.png, 2.png, ... (or img1.ppm, ...) beside H_1_2, ... (or H1to2p, ...)"


@dataclass
class Sequence:
    """One sequence folder: its images by number, and the homographies from image 1 (a (3, 3) array each)."""

    folder: Path
    images: dict[int, Path] = field(default_factory=dict)
    homography_files: dict[int, Path] = field(default_factory=dict)
    homographies: dict[int, np.ndarray] = field(default_factory=dict)


def find_sequences(src: Path) -> tuple[list[Sequence], list[Reject], dict[str, int]]:
    """The sequences of `src` (itself one, or a folder of them), byte-sorted, with what is missing and passed by.

    A sequence keeps the images k that have a homography; an image without one, or one without its image, is a Reject,
    and so is a whole sequence without image 1 or with image 1 alone. Raises MissingError / InputError if there is no
    sequence, if an image number occurs twice, or if a homography is malformed (naming the file).
    """
    if not src.is_dir():
        raise MissingError(f"{printable(src)} is not a folder; a folder of sequences is expected: {EXPECTED}")
    dots = 0
    found: list[Sequence] = []
    passed = 0
    itself, hidden = _scan(src)
    dots += hidden
    if itself.images or itself.homography_files:
        found.append(itself)
    else:
        below = [path for path in src.iterdir() if path.is_dir() and not path.name.startswith(".")]
        for folder in sorted(below, key=lambda path: relative_name(path, src)):
            sequence, hidden = _scan(folder)
            dots += hidden
            if sequence.images or sequence.homography_files:
                found.append(sequence)
            else:
                passed += 1
    if not found:
        raise InputError(
            f"no image sequence in {printable(src)}: neither the folder itself nor any of its {passed} folders holds "
            f"numbered images or homographies. Expected NAME/{EXPECTED}"
        )
    rejects: list[Reject] = []
    whole = [sequence for sequence in found if _complete(sequence, src, rejects)]
    counts = {"dot files skipped": dots, "folders that are no sequence": passed}
    return whole, rejects, {name: number for name, number in counts.items() if number}


def _scan(folder: Path) -> tuple[Sequence, int]:
    """The numbered files of one folder, and how many dot files were skipped."""
    sequence, dots = Sequence(folder), 0
    for path in sorted(folder.iterdir(), key=lambda path: relative_name(path, folder)):
        if path.name.startswith("."):
            dots += 1
        elif path.is_dir():
            continue
        elif (name := _IMAGE.fullmatch(path.name)) and name[2].lower() in EXTENSIONS:
            _add(sequence.images, int(name[1]), path, "image")
        elif name := _HOMOGRAPHY.fullmatch(path.name):
            _add(sequence.homography_files, int(name[1] or name[2]), path, "homography to image")
    sequence.homography_files.pop(1, None)  # the identity, where it is written at all
    return sequence, dots


def _add(files: dict[int, Path], number: int, path: Path, what: str) -> None:
    if number in files:
        raise InputError(
            f"{printable(path.parent)}: two files for {what} {number}: {printable(files[number].name)} and "
            f"{printable(path.name)}; keep one"
        )
    files[number] = path


def _complete(sequence: Sequence, src: Path, rejects: list[Reject]) -> bool:
    """Read the homographies, drop what lacks its partner (a Reject each); whether there is anything left to match."""
    name = relative_name(sequence.folder, src)
    if 1 not in sequence.images:
        rejects.append(Reject(name, "image 1 is missing; the homographies start from it, so the sequence is left out"))
        return False
    for k, path in sorted(sequence.homography_files.items()):
        if k in sequence.images:
            sequence.homographies[k] = read_homography(path)
        else:
            rejects.append(Reject(relative_name(path, src), f"image {k} is missing, so this homography is of no use"))
    for k in sorted(sequence.images.keys() - sequence.homographies.keys() - {1}):
        path = sequence.images.pop(k)
        rejects.append(Reject(relative_name(path, src), f"homography H_1_{k} (or H1to{k}p) is missing"))
    if len(sequence.images) == 1:
        rejects.append(Reject(name, "image 1 is the only usable image, so the sequence has nothing to match"))
    return len(sequence.images) > 1


def read_homography(path: Path) -> np.ndarray:
    """A homography float64 (3, 3): nine numbers separated by any white space. Raises InputError naming the file."""
    try:
        words = read_bytes(path).decode("ascii").split()
        values = np.array([float(word) for word in words])
    except ImageError as error:
        raise InputError(f"homography {error}") from error
    except ValueError as error:
        raise InputError(f"homography {printable(path)} is not nine numbers ({error})") from error
    if len(values) != 9:
        raise InputError(f"homography {printable(path)} holds {len(values)} numbers, nine are needed (3 rows of 3)")
    homography = values.reshape(3, 3)
    if not np.isfinite(values).all() or abs(np.linalg.det(homography)) < 1e-12:
        raise InputError(f"homography {printable(path)} is not finite, or it is singular: {values.tolist()}")
    return homography
