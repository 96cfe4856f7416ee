"""What a reader is: it lists the items of a raw dataset cheaply, then reads the pixels of any slice of them.

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
    """One source that did not become a patch: `source` is the raw name (bytes, as on disk), `reason` one line."""

    source: bytes
    reason: str


@dataclass(frozen=True)
class Pair:
    """An evaluation pair list over candidate numbers: `first`, `second` int64 (P,), `match` bool (P,)."""

    first: np.ndarray
    second: np.ndarray
    match: np.ndarray


@dataclass
class Candidates:
    """Every item that may become a patch, in source order; candidate number = position here.

    raw_label: (N,) int64 or bytes ('S'), what the dataset calls the class. source: (N,) bytes ('S'), where the item
    came from (file and cell, photograph and keypoint), unique. pixel_shape: (H, W) or (H, W, C), uint8.
    columns: further per-item columns, each (N, ...): 'image' int64 (number of the photograph the patch was cut from),
    'frame' float32 (N, 4) (x, y, size in pixels of that photograph, angle in radians). pairs: evaluation pair lists by
    name. rejects: sources that could not even be listed. counts: what the reader wants said in the table at the end of
    the stage (dropped keypoints, dot files skipped), name to number. files: the raw files this depends on, for the key
    of an interrupted ingest. policy: the rule by which files became pixels, for the manifest.
    """

    raw_label: np.ndarray
    source: np.ndarray
    pixel_shape: tuple[int, ...]
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    pairs: dict[str, Pair] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    policy: str = ""


class Reader(Protocol):
    """A dataset layout. Construct it with the source folder and its validated options."""

    Options: ClassVar[type[Options]]

    def __init__(self, src: Path, options: Any) -> None: ...

    def candidates(self) -> Candidates:
        """List the items. Raises InputError / MissingError where the folder is not this layout."""
        ...

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | Reject]]:
        """Yield (candidate number, pixels uint8 of pixel_shape, or Reject) for each of `numbers` (ascending), in order.

        Must not depend on which other numbers are asked for: shards are read apart and in any order."""
        ...


readers: Registry[type[Reader]] = Registry("dataset kind", "hardmine.pipeline.readers")
