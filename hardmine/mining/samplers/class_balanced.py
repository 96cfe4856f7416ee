"""Class-balanced batches: a few classes, the same number of items of each; for miners that look inside a batch."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from hardmine.errors import InputError
from hardmine.mining.plan import ItemPlan
from hardmine.mining.samplers.base import Sampler, samplers
from hardmine.mining.samplers.coverage import Coverage
from hardmine.options import Options
from hardmine.store.rounds import Round


class ClassBalancedOptions(Options):
    """classes, per_class: a batch is `classes` groups of `per_class` items of one class, different items where the
    class has so many. small: what happens to a class of fewer: "drop", it is never drawn (and counted), "repeat", items
    come several times, told apart by augmentation alone (DSDML's code). draw: how classes are chosen: "distinct",
    different ones in a batch, drawn evenly; "pads", any but the last two, as PADS' batch builder (specs 1.7); "pass", a
    random order of all classes, each once, and then the next order (DSDML's epochs; the classes that are left over at
    the end of a pass, fewer than a batch, are not used in it)."""

    classes: int = Field(32, ge=2)
    per_class: int = Field(4, ge=2)
    small: Literal["drop", "repeat"] = "drop"
    draw: Literal["distinct", "pads", "pass"] = "distinct"


@samplers.register("class-balanced")
class ClassBalanced(Sampler):
    """Batches of single items; options in `ClassBalancedOptions`."""

    Options = ClassBalancedOptions
    options: ClassBalancedOptions

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._size = np.diff(self.entries.offsets)
        least = self.options.per_class if self.options.small == "drop" else 1
        self.classes = np.flatnonzero(self._size >= least)
        self.skipped_classes = int(np.count_nonzero(self._size) - len(self.classes))
        needed = 3 if self.options.draw == "pads" else self.options.classes
        if len(self.classes) < needed:
            raise InputError(
                f"a batch needs {needed} classes with {least} items or more, but this split has {len(self.classes)} "
                f"({self.skipped_classes} have fewer): choose fewer classes or items of each"
            )
        self._coverage = Coverage(len(self._size), self.classes, self.steps_per_pass)

    @property
    def steps_per_pass(self) -> int:
        """See `Sampler.steps_per_pass`."""
        return max(1, len(self.classes) // self.options.classes)

    def plan(self, step: int) -> ItemPlan:
        """See `Sampler.plan`."""
        rng = self.random(step)
        chosen = self.choose_classes(step, rng)
        entry = self.entries.offsets[chosen][:, None] + self._slots(self._size[chosen], rng)
        row = self.entries.row[entry.reshape(-1)]
        return ItemPlan(step, row, np.repeat(chosen, self.options.per_class))

    @property
    def items(self) -> int:
        """See `Sampler.items`."""
        return self.options.classes * self.options.per_class

    def choose_classes(self, step: int, rng: np.random.Generator) -> np.ndarray:
        """The classes of a batch, int64 (classes,)."""
        count, known = self.options.classes, len(self.classes)
        if self.options.draw == "distinct":
            return self.classes[rng.choice(known, count, replace=False)]
        if self.options.draw == "pass":
            order = self.random(step // self.steps_per_pass, stream=1).permutation(known)
            return self.classes[order[step % self.steps_per_pass * count :][:count]]
        drawn: list[int] = []
        while len(drawn) < count:
            drawn += [one for one in [int(rng.integers(known))] if one not in drawn[-2:]]
        return self.classes[drawn]

    def _slots(self, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """int64 (classes, per_class): the drawn items of each class, all of them once before one comes again."""
        widest, wanted = int(size.max()), self.options.per_class
        key = rng.random((len(size), widest))
        key[np.arange(widest)[None, :] >= size[:, None]] = np.inf
        order = np.argsort(key, axis=1)
        return np.take_along_axis(order, np.arange(wanted)[None, :] % size[:, None], axis=1)

    def use_nearest(self, nearest: np.ndarray, source: Round | None, step: int) -> None:
        """See `Sampler.use_nearest`."""
        if self.nearest is not None:
            self._count(step)  # by the lists they were planned with
        super().use_nearest(nearest, source, step)

    def scalars(self, step: int) -> dict[str, float]:
        """coverage, pass_coverage: of the usable classes, before `step`; see `Coverage.scalars`."""
        self._count(step)
        return self._coverage.scalars()

    def state(self, step: int) -> dict[str, Any]:
        """See `Sampler.state`."""
        self._count(step)
        return {"coverage": self._coverage.state()}

    def load(self, state: dict[str, Any]) -> None:
        """See `Sampler.load`."""
        self._coverage.load(state["coverage"])

    def _count(self, step: int) -> None:
        if self.needs_nearest and self.nearest is None and step > self.rounds_from:
            return  # there was no batch yet
        self._coverage.count(step, lambda done: self.choose_classes(done, self.random(done)))
