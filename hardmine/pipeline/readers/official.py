"""Whether a dataset is whole: its size as published, split by split, against what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Size:
    """Images, and the classes they are of."""

    images: int
    classes: int

    @classmethod
    def of(cls, raw_label: np.ndarray) -> Size:
        """The size of a list of images, by the class of each."""
        return cls(len(raw_label), len(np.unique(raw_label)))


@dataclass(frozen=True)
class Official:
    """A dataset's size as published: the whole of it, and each split."""

    name: str
    whole: Size
    splits: Mapping[str, Size] = field(default_factory=dict)

    def compare(self, raw_label: list[int] | list[bytes], split: list[bytes]) -> dict[str, int]:
        """Counts for the table at the end of the stage: how many numbers differ from the published ones, then each of
        those, as found, under a name that says what was expected."""
        labels, splits = np.array(raw_label), np.array(split)
        found = {"": (Size.of(labels), self.whole)}
        for name, size in self.splits.items():
            found[f" in {name}"] = (Size.of(labels[splits == name.encode()]), size)
        differing = {
            f"{self.name}: {what}{where} ({getattr(expected, what):,} expected)": getattr(there, what)
            for where, (there, expected) in found.items()
            for what in ("images", "classes")
            if getattr(there, what) != getattr(expected, what)
        }
        return {f"{self.name}: numbers that differ from the published ones": len(differing)} | differing
