"""Which classes the batches of a run have had so far, and in its last pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Coverage:
    """Counts the classes of each step's batch once, whenever it is asked.

    classes: number of labels. usable: int64, those that can be in a batch. steps_per_pass: batches of a pass."""

    def __init__(self, classes: int, usable: np.ndarray, steps_per_pass: int):
        self.usable, self.steps_per_pass = usable, steps_per_pass
        self.counted = 0
        self._run, self._pass = np.zeros(classes, bool), np.zeros(classes, bool)
        self._last: float | None = None

    def count(self, step: int, classes_of: Callable[[int], np.ndarray]) -> None:
        """Count the steps before `step` that were not yet. classes_of: step -> the classes of its batch."""
        for done in range(self.counted, step):
            classes = classes_of(done)
            self._run[classes] = self._pass[classes] = True
            if (done + 1) % self.steps_per_pass == 0:
                self._last = float(self._pass[self.usable].mean())
                self._pass[:] = False
        self.counted = max(self.counted, step)

    def scalars(self) -> dict[str, float]:
        """coverage: share of the usable classes that were in a batch at all. pass_coverage: in the last complete pass;
        before there is one, in the first as far as it is."""
        last = float(self._pass[self.usable].mean()) if self._last is None else self._last
        return {"coverage": float(self._run[self.usable].mean()), "pass_coverage": last}

    def state(self) -> dict[str, Any]:
        """JSON, for a checkpoint."""
        seen = {name: np.packbits(mask).tobytes().hex() for name, mask in (("run", self._run), ("pass", self._pass))}
        return {"counted": self.counted, "last": self._last, **seen}

    def load(self, state: dict[str, Any]) -> None:
        """Go back to a `state`."""
        self.counted, self._last = state["counted"], state["last"]
        for name, mask in (("run", self._run), ("pass", self._pass)):
            mask[:] = np.unpackbits(np.frombuffer(bytes.fromhex(state[name]), np.uint8), count=len(mask)).astype(bool)
