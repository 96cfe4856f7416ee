"""What a reader is: it lists the items of a raw dataset cheaply, then reads the pixels or files of any slice of them.

A reader never decides what happens to a bad item: it returns a `Reject` in its place, and `ingest` skips or fails as
the user asked. Names are byte-sorted, so that the same folder gives the same order on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from hardmine.options import Options
from hardmine.registry import Registry


@dataclass(frozen=True)
class Reject:
    """One source that did not become an item: `source` is the raw name (bytes, as on disk), `reason` one line."""

    source: bytes
    reason: str


@dataclass(frozen=True)
class Picture:
    """An image file as the dataset has it, not decoded.

    content: the file's own bytes. name: the item's source (as in `Candidates.source`), for rejects and messages.
    box: (x1, y1, x2, y2), what of it the item shows, in pixels of the upright photograph (EXIF orientation applied);
    x1, y1 at the outer edge of the first pixel inside, x2, y2 at the outer edge of the last, so that a width is
    x2 - x1; None: the whole of it.
    """

    content: bytes
    name: bytes
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Pair:
    """An evaluation pair list over candidate numbers: `first`, `second` int64 (P,), `match` bool (P,)."""

    first: np.ndarray
    second: np.ndarray
    match: np.ndarray


@dataclass
class Candidates:
    """Every item that may be stored, in source order; candidate number = position here.

    raw_label: (N,) int64 or bytes ('S'), what the dataset calls the class. source: (N,) bytes ('S'), where the item
    came from (file and cell, photograph and keypoint), unique. pixel_shape: (H, W) or (H, W, C) of uint8 pixels, or
    None for a dataset of images: `read` then yields `Picture`s, of any size. columns: further per-item columns, each
    (N, ...): 'image' int64 (number of the photograph the patch was cut from), 'frame' float32 (N, 4) (x, y, size in
    pixels of that photograph, angle in radians), 'camera' int64. pairs: evaluation pair lists by name. rejects: sources
    that could not even be listed. counts: what the reader wants said in the table at the end of the stage (dropped
    keypoints, dot files skipped), name to number. files: the raw files this depends on, for the key of an interrupted
    ingest. policy: the rule by which files became pixels, for the manifest. split: (N,) bytes ('S'), the dataset's own
    split of each item (b"train", b"test", b"query", b"gallery", ...; b"": none), or None. crop: whether the items are
    boxes of their photographs, to be cut out unless the user says otherwise.
    """

    raw_label: np.ndarray
    source: np.ndarray
    pixel_shape: tuple[int, ...] | None
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    pairs: dict[str, Pair] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    policy: str = ""
    split: np.ndarray | None = None
    crop: bool = False


class Reader(Protocol):
    """A dataset layout. Construct it with the source folder and its validated options."""

    Options: ClassVar[type[Options]]

    def __init__(self, src: Path, options: Any) -> None: ...

    def candidates(self) -> Candidates:
        """List the items. Raises InputError / MissingError where the folder is not this layout."""
        ...

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | Picture | Reject]]:
        """Yield (candidate number, pixels uint8 of pixel_shape, or Picture where that is None, or Reject) for each of
        `numbers` (ascending), in order.

        Must not depend on which other numbers are asked for: shards are read apart and in any order."""
        ...


readers: Registry[type[Reader]] = Registry("dataset kind", "hardmine.pipeline.readers")
