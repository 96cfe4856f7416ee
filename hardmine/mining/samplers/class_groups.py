"""Class-balanced batches in which near classes meet, by the nearest-class lists of a mining round."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field, model_validator

from hardmine.mining.grouping import Choose, grouped_classes
from hardmine.mining.samplers.base import samplers
from hardmine.mining.samplers.class_balanced import ClassBalanced, ClassBalancedOptions

_SPARE = 16  # nearest classes beyond a group's, for those that are taken or not usable


class GroupOptions(ClassBalancedOptions):
    """group: classes of a group, one drawn at random and others of its nearest ones. share: part of the batch filled
    with groups; the rest is drawn at random (0: the batches of `class-balanced`)."""

    group: int = Field(8, ge=2)
    share: float = Field(1.0, ge=0, le=1)

    @model_validator(mode="after")
    def _draws_by_groups(self) -> GroupOptions:
        if self.draw != "distinct":
            raise ValueError('groups are drawn in one way: leave draw out, or use sampler "class-balanced"')
        return self


class GroupSampler(ClassBalanced):
    """Classes are drawn evenly; each that is not in the batch yet enters it with group - 1 of its nearest classes that
    are not, until `share` of the batch is full; then they enter by themselves. A batch's classes are different ones.
    Which of the nearest ones: `choose_partners`."""

    Options = GroupOptions
    options: GroupOptions

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._usable = np.isin(np.arange(len(self._size)), self.classes)

    def choose_classes(self, step: int, rng: np.random.Generator) -> np.ndarray:
        """See `ClassBalanced.choose_classes`."""
        if self.waits(step):
            return super().choose_classes(step, rng)
        assert self.nearest is not None  # `waits` has checked
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
        """How a group's classes are chosen among the nearest ones of its first."""
        raise NotImplementedError(f"{type(self).__name__} does not say which classes make a group")


class ClassGroupOptions(GroupOptions):
    """skip: so many nearest classes are passed over: a class that is not told apart at all may be the same under
    another name. candidates: a group's classes are drawn evenly among so many after these; null: the nearest after
    these are taken."""

    skip: int = Field(0, ge=0)
    candidates: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _enough_for_a_group(self) -> ClassGroupOptions:
        if self.candidates is not None and self.candidates < self.group - 1:
            raise ValueError(f"candidates = {self.candidates} are too few for a group of {self.group} classes")
        return self


@samplers.register("class-groups")
class ClassGroups(GroupSampler):
    """The classes of a group are near in the last round: the nearest ones, or others of a window of ranks (`skip`,
    `candidates`), which sets how hard a batch is. Options in `ClassGroupOptions`."""

    Options = ClassGroupOptions
    options: ClassGroupOptions

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.needs_nearest = self.options.skip + (self.options.candidates or self.options.group - 1 + _SPARE)

    def choose_partners(self, step: int, rng: np.random.Generator) -> Choose:
        """See `GroupSampler.choose_partners`."""
        skip, candidates = self.options.skip, self.options.candidates

        def choose(seed: int, place: np.ndarray, most: int) -> np.ndarray:
            place = place[place >= skip]
            if candidates is None:
                return place[:most]
            place = place[place < skip + candidates]
            return place[np.sort(rng.permutation(len(place))[:most])]

        return choose
