"""Class-balanced batches in which near classes meet, by the nearest-class lists of a mining round."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from hardmine.mining.grouping import Choose, first_ones, grouped_classes
from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.class_balanced import ClassBalanced, ClassBalancedOptions

_SPARE = 16  # nearest classes beyond a group's, for those that are taken or not usable


class ClassGroupOptions(ClassBalancedOptions):
    """group: classes of a group, one drawn at random and its nearest ones. share: part of the batch filled with groups;
    the rest is drawn at random (0: the batches of `class-balanced`)."""

    group: int = Field(8, ge=2)
    share: float = Field(1.0, ge=0, le=1)


@samplers.register("class-groups")
class ClassGroups(ClassBalanced):
    """Classes are drawn evenly; each that is not in the batch yet enters it with its group - 1 nearest
    classes that are not, until `share` of the batch is full; then they enter by themselves. A batch's classes are
    different ones. Options in `ClassGroupOptions`."""

    Options = ClassGroupOptions
    options: ClassGroupOptions

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.needs_nearest = self.options.group - 1 + _SPARE
        self._usable = np.isin(np.arange(len(self._size)), self.classes)

    def choose_classes(self, step: int, rng: np.random.Generator) -> np.ndarray:
        """See `ClassBalanced.choose_classes`."""
        assert self.nearest is not None  # `plan` has checked
        return grouped_classes(
            self.classes[rng.permutation(len(self.classes))],
            self.nearest,
            self._usable,
            count=self.options.classes,
            group=self.options.group,
            share=self.options.share,
            choose=self.choose_partners(step, rng),
        )

    def choose_partners(self, step: int, rng: np.random.Generator) -> Choose:
        """How a group's classes are chosen among the nearest ones of its first: the nearest."""
        return first_ones
