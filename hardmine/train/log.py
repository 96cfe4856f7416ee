"""The log of a run: one JSON line per record, TensorBoard scalars of the same, and where the time went."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


class RunLog:
    """`log.jsonl` and `tensorboard/` of a run that goes on at `step`. lines: the records that its last checkpoint had
    seen; later ones, left by a run that was killed after it, are dropped and will be written again."""

    def __init__(self, run: Path, step: int = 0, lines: int = 0):
        file = run / "log.jsonl"
        kept = file.read_text(encoding="utf-8").splitlines()[:lines] if lines else []
        file.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        self.lines = len(kept)
        self._file = file.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def seconds(self, **spent: float) -> None:
        """Add to the time spent per phase; written, summed, with the next record."""
        for phase, value in spent.items():
            self._seconds[phase] += value

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        began = time.perf_counter()
        yield
        self.seconds(**{phase: time.perf_counter() - began})

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Record `values` at `step` (steps done)."""
        timed = {f"seconds/{phase}": round(value, 4) for phase, value in self._seconds.items()}
        self._seconds.clear()
        self._file.write(json.dumps({"step": step, **values, **timed}) + "\n")
        self._file.flush()
        self.lines += 1
        for name, value in {**values, **timed}.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close both."""
        self._file.close()
        self._board.close()


class NoLog(RunLog):
    """What the processes of a training that do not write have in place of a `RunLog`."""

    def __init__(self) -> None:
        self.lines = 0

    def seconds(self, **spent: float) -> None:
        """Nothing."""

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Nothing."""
        yield

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
