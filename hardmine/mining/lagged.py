"""A running average that is used a fixed number of steps late, so that plans can be made ahead of the training step."""

from __future__ import annotations

from typing import Any, SupportsFloat

from hardmine.errors import InputError, StoreError


class LaggedAverage:
    """Exponential average of a value per step; the plan of step t uses the values of steps <= t - lag only.

    momentum: weight of the past. initial: the average before any value. Values may be tensors still being computed on a
    GPU: they are read when the lag says that they are needed, not when they are recorded.
    """

    def __init__(self, momentum: float, initial: float, lag: int):
        if lag < 1:
            raise InputError(f"lag must be at least 1 step, not {lag}")
        self.momentum, self.lag = momentum, lag
        self._folded = [float(initial)]  # _folded[i]: the average after the values of steps < _first + i
        self._first = 0
        self._waiting: list[SupportsFloat] = []

    def record(self, step: int, value: SupportsFloat) -> None:
        """Keep the value of `step`; steps come in order, each once."""
        expected = self._first + len(self._folded) - 1 + len(self._waiting)
        if step != expected:
            raise StoreError(f"the value of step {step} was recorded where that of step {expected} was due")
        self._waiting.append(value)

    def at(self, step: int) -> float:
        """The average that the plan of `step` uses. Raises StoreError where that value is not known yet (plans are
        prefetched deeper than the lag) or no longer kept."""
        used = max(0, step - self.lag + 1)
        self._fold(used)
        place = used - self._first
        if not 0 <= place < len(self._folded):
            raise StoreError(
                f"the plan of step {step} needs the losses before step {used}, but those from {self._first} to "
                f"{self._first + len(self._folded) - 1} are known: prefetch no deeper than the lag ({self.lag} steps)"
            )
        if place > 4 * self.lag:  # bounded memory; a checkpoint needs the last `lag` averages only
            drop = place - 2 * self.lag
            self._folded, self._first = self._folded[drop:], self._first + drop
        return self._folded[used - self._first]

    def _fold(self, used: int) -> None:
        while self._waiting and self._first + len(self._folded) - 1 < used:
            value = float(self._waiting.pop(0))
            self._folded.append(self.momentum * self._folded[-1] + (1 - self.momentum) * value)

    def state(self, step: int) -> dict[str, Any]:
        """What a run that continues at `step` needs: the averages from step - lag on."""
        used = max(0, step - self.lag + 1)
        self._fold(step)
        return {"first": used, "averages": self._folded[used - self._first :]}

    def load(self, state: dict[str, Any]) -> None:
        """Go back to a `state`."""
        self._first, self._folded, self._waiting = int(state["first"]), list(state["averages"]), []
