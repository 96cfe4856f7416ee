"""SIGTERM as a request: the loop sees it between two steps, writes a checkpoint and ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Request:
    """Whether the process was asked to end."""

    made = False


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
