"""A `map` on several threads whose results come in order, with matrix products on one thread each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from threadpoolctl import threadpool_limits

A = TypeVar("A")
R = TypeVar("R")


class OrderedMap(Protocol):
    """As `map`: the results of a function on each item, in their order."""

    def __call__(self, function: Callable[[A], R], items: Iterable[A], /) -> Iterator[R]: ...


@contextmanager
def in_order_on(threads: int) -> Iterator[OrderedMap]:
    """An `OrderedMap` on so many threads; 1 is this one. It works at most two items a thread ahead of the results that
    were taken. NumPy's products run on one thread as long as this lasts, so that threads do not take each other's."""
    with threadpool_limits(1, user_api="blas"):
        if threads == 1:
            yield map
            return
        with ThreadPoolExecutor(threads) as pool:

            def ordered(function: Callable[[A], R], items: Iterable[A]) -> Iterator[R]:
                waiting: deque[Future[Any]] = deque()
                for item in items:
                    waiting.append(pool.submit(function, item))
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()

            yield ordered
