"""Where a step's time goes, phase by phase, without waiting for the device."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Phases:
    """Adds up the seconds of named phases of a step.

    On CUDA a phase is the device's time between two events, which are read when somebody asks, after the device has
    passed them; elsewhere it is the process's own time."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what is done inside as `phase`."""
        if self._cuda:
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            yield
            last.record()
            self._events.append((phase, first, last))
            return
        began = time.perf_counter()
        yield
        self._spent[phase] += time.perf_counter() - began

    def seconds(self) -> dict[str, float]:
        """Seconds since this was asked last. On CUDA it waits for the last step that was counted."""
        if self._events:
            self._events[-1][2].synchronize()
        for phase, first, last in self._events:
            self._spent[phase] += first.elapsed_time(last) / 1e3
        spent, self._spent = dict(self._spent), defaultdict(float)
        self._events.clear()
        return spent
