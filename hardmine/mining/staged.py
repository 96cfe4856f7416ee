"""Miners and losses that change over a run: the loop tells them how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hardmine.errors import InputError


@dataclass(frozen=True)
class Elapsed:
    """How far a run is.

    step: 0-based, the one about to be done. steps: of the run. steps_per_pass: batches of a pass over all usable
    classes, the last, smaller one dropped (`Sampler.steps_per_pass`). Raises InputError where a number is out of range.
    """

    step: int
    steps: int
    steps_per_pass: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or self.steps_per_pass < 1 or not 0 <= self.step <= self.steps:
            raise InputError(
                f"step {self.step} of {self.steps}, {self.steps_per_pass} a pass: expected a step from 0 to the run's "
                "last, and 1 or more of the others"
            )

    @property
    def fraction(self) -> float:
        """step / steps, in [0, 1]."""
        return self.step / self.steps


@runtime_checkable
class Staged(Protocol):
    """A miner or a loss that depends on the progress of the run. Before each step the loop does

        if isinstance(part, Staged):
            part.advance(Elapsed(step, steps, sampler.steps_per_pass))

    Progress is a function of the step, so a resumed run needs no state of it."""

    def advance(self, elapsed: Elapsed) -> None:
        """Choose, or weigh, from now on as at `elapsed`."""
        ...
