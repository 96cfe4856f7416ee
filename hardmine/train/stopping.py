"""SIGTERM as a request: the loop sees it between two steps, writes a checkpoint and ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_LATER = 0.2  # seconds that the signal may reach this process after its workers


class Request:
    """Whether the process was asked to end."""

    made = False

    def ending(self, batches: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """The batches. Where they break off because loader workers got the same signal, as they do when it goes to a
        group of processes, (None, None) comes last instead of the error."""
        source = iter(batches)
        while True:
            try:
                batch = next(source, None)
            except RuntimeError:
                time.sleep(_LATER)
                if not self.made:
                    raise
                batch = None, None
            if batch is None:
                return
            yield batch


@contextmanager
def sigterm() -> Iterator[Request]:
    """While inside, SIGTERM only makes the request, however often it comes: a scheduler and torchrun may both send it.
    Outside of the main thread, which alone can handle signals, it stays as it is."""
    request = Request()

    def handler(number: int, frame: Any) -> None:
        request.made = True

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, previous)
