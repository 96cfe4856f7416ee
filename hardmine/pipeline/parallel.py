"""One function over many tasks: in this process, in worker processes of this machine, or on a dask cluster.

    for index, record in run_tasks(write_shard, tasks, workers=8):
        ...

Tasks must not depend on each other or on the order in which they are done, and doing one twice must do no harm: that is
what lets a worker die. dask does the rest: it sends tasks, notices dead workers and repeats what they had.
"""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from hardmine.errors import HardmineError, InputError

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")
R = TypeVar("R")
Advance = Callable[[int], None]  # a task calls it with the number of units (items, ...) done since the last call

_WAIT = 60  # seconds for a scheduler to answer, and for it to have a worker
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerError(HardmineError, RuntimeError):
    """Workers that cannot be had, or that died again and again over the same task."""


def run_tasks(
    function: Callable[[T, Advance], R],
    tasks: Sequence[T],
    *,
    workers: int = 0,
    scheduler: str | None = None,
    in_flight: int | None = None,
    progress: Advance | None = None,
) -> Generator[tuple[int, R], None, None]:
    """Yield (number of the task, `function(task, advance)`) as tasks are done, in any order.

    workers: 0 runs the tasks one after the other in this process; N > 0 in N processes that are started for this call.
    scheduler: address (tcp://host:port) of a running dask scheduler, whose workers have hardmine and see the same
    files. There, function, tasks and results are pickled, and torch, OpenMP and OpenCV use one thread in each task.
    in_flight: tasks that are with the workers at any time, which bounds memory; default: one for each worker thread.
    progress: called in the caller's thread with what tasks hand to `advance`; what a repeated task does again is not
    counted again.

    A worker that dies is replaced, and its task is done again elsewhere. An error in a task is raised here once the
    tasks that were running have ended; none is started after it. A script that uses `workers` must guard its entry with
    `if __name__ == "__main__"`, since the workers import it.

    Raises InputError for arguments that contradict each other, WorkerError where no worker can be had or a task was
    lost with several workers, and whatever `function` raises.
    """
    check_workers(workers, scheduler, in_flight)
    if not tasks:
        return
    if not workers and scheduler is None:
        for index, task in enumerate(tasks):
            yield index, function(task, progress or _ignore)
        return
    with _client(min(workers, len(tasks)), scheduler) as client:
        yield from _run(client, function, tasks, in_flight, progress or _ignore)


def check_workers(workers: int, scheduler: str | None, in_flight: int | None) -> None:
    """Raises InputError for arguments of `run_tasks` that contradict each other."""
    if workers < 0 or (in_flight is not None and in_flight < 1) or (workers and scheduler is not None):
        raise InputError(
            f"workers {workers}, scheduler {scheduler}, in_flight {in_flight}: give either workers (0 or more) or a "
            "scheduler, and keep at least one task in flight"
        )


def _run(
    client: Client, function: Callable[[T, Advance], R], tasks: Sequence[T], in_flight: int | None, progress: Advance
) -> Generator[tuple[int, R], None, None]:
    from distributed.protocol import pickle

    topic = f"hardmine-{uuid.uuid4().hex}"
    news: SimpleQueue[tuple[int, int | Future]] = SimpleQueue()  # (task, units done so far) or (task, its future)
    units = [0] * len(tasks)
    running: dict[int, Future] = {}
    client.subscribe_topic(topic, lambda event: news.put(event[1]))
    # Sent once and kept by dask, which makes it again where the worker that holds it dies; unpickled for every task, so
    # that no two threads share a reader.
    shared = client.submit(_same, pickle.dumps(function), key=topic, pure=False)
    waiting = iter(range(len(tasks)))
    try:
        while True:
            room = (in_flight or max(1, sum(client.nthreads().values()))) - len(running)
            for _, index in zip(range(room), waiting):
                running[index] = client.submit(_call, shared, tasks[index], index, topic, key=f"{topic}-{index}")
                running[index].add_done_callback(lambda future, index=index: news.put((index, future)))
            if not running:
                return
            index, what = news.get()
            if isinstance(what, int):
                done, finished = what, False
            else:
                result, done = _result(running.pop(index), index, len(tasks))
                finished = True
            if done > units[index]:
                progress(done - units[index])
                units[index] = done
            if finished:
                yield index, result
    finally:
        # Nothing may be written after this call: a task that has begun is waited for. (A cluster of our own is closed
        # by the caller, which waits for its tasks too, then ends the processes.)
        while running and client.cluster is None:
            index, what = news.get()
            if not isinstance(what, int):
                del running[index]
        client.unsubscribe_topic(topic)
        client.cancel([*running.values(), shared])


def _call(packed: bytes, task: Any, index: int, topic: str) -> tuple[Any, int]:
    """On a worker: the result of a task, and the units it reported."""
    from distributed import get_worker
    from distributed.protocol import pickle

    function = pickle.loads(packed)
    _use_one_thread()
    worker, done = get_worker(), 0

    def advance(units: int) -> None:
        nonlocal done
        done += units
        worker.log_event(topic, (index, done))

    return function(task, advance), done


def _result(future: Future, index: int, count: int) -> tuple[Any, int]:
    from concurrent.futures import CancelledError

    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker as error:
        raise WorkerError(
            f"the worker that was given task {index} of {count} died, and so did every other that tried it (the last: "
            f"{error.last_worker.address}). It may have run out of memory: use fewer workers or smaller shards. What "
            "is finished is kept; the same command goes on from there."
        ) from error
    except CancelledError as error:
        raise WorkerError(
            f"the connection to the dask scheduler was lost at task {index} of {count} ({error}). What is finished is "
            "kept; the same command goes on from there."
        ) from error


@contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Client]:
    """A connection to `scheduler`, or to a cluster of `workers` processes that ends with it."""
    from distributed import Client, LocalCluster

    with ExitStack() as stack:
        if scheduler is not None:
            try:
                client = stack.enter_context(Client(scheduler, timeout=_WAIT, set_as_default=False))
                client.wait_for_workers(1, timeout=_WAIT)
            except (OSError, ValueError, TimeoutError) as error:
                raise WorkerError(
                    f"no worker to be had from the dask scheduler {scheduler} ({error}). Is it running, and does it "
                    f"have workers (dask worker {scheduler})?"
                ) from error
            yield client
            return
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                memory_limit=0,  # in_flight bounds it; dask would kill workers by a guess
                silence_logs=logging.CRITICAL,
                env=dict.fromkeys(_THREADS, "1"),
            )
        except (OSError, RuntimeError, TimeoutError) as error:
            raise WorkerError(
                f"cannot start {workers} worker processes ({error}). In a script, start them under "
                'if __name__ == "__main__".'
            ) from error
        stack.enter_context(cluster)
        yield stack.enter_context(Client(cluster, set_as_default=False))


def _use_one_thread() -> None:
    """One thread for each library: a worker is one of as many as there are cores."""
    for name in _THREADS:  # for what is loaded later
        os.environ.setdefault(name, "1")
    modules: dict[str, Any] = dict(sys.modules)
    if "torch" in modules:
        modules["torch"].set_num_threads(1)
    if "cv2" in modules:
        modules["cv2"].setNumThreads(1)


def _same(value: bytes) -> bytes:
    return value


def _ignore(units: int) -> None:
    """Nobody wants to know."""
