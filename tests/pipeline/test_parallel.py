"""Tasks here, in processes, on a cluster: the same results, errors that stop, and workers that may die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import LocalCluster

from hardmine.errors import InputError
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.parallel import Advance, WorkerError, run_tasks
from hardmine.store.patches import PatchStore


def square(task: int, advance: Advance) -> int:
    advance(2)
    if task < 0:
        raise InputError(f"{task} is negative")
    advance(1)
    return task * task


def die(task: int, advance: Advance) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def tree(store: Path) -> dict[str, bytes]:
    """Every file of a store but its lock."""
    paths = [path for path in store.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(store)): path.read_bytes() for path in paths}


def test_a_worker_killed_half_way_changes_nothing(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 240)
    ingest("phototour", tmp_path / "src", tmp_path / "undisturbed", shard_rows=4)
    killed: list[multiprocessing.process.BaseProcess] = []

    def kill_half_way(done: int, total: int) -> None:
        if not killed and done >= total // 2:
            worker = next(p for p in multiprocessing.active_children() if "Dask" in p.name)
            killed.append(worker)
            os.kill(worker.pid, signal.SIGKILL)

    ingest("phototour", tmp_path / "src", tmp_path / "s", shard_rows=4, workers=2, progress=kill_half_way)
    assert killed
    assert tree(tmp_path / "s") == tree(tmp_path / "undisturbed")
    assert PatchStore.open(tmp_path / "s").verify() == []


def test_a_task_that_kills_its_workers_is_named() -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(WorkerError, match=r"given task 0 of 1 died.*goes on from there"),
    ):
        list(run_tasks(die, [0], workers=1))


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a dask scheduler with two workers, all of them threads of this process."""
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster.scheduler_address


def test_in_this_process_in_order() -> None:
    seen: list[int] = []
    assert list(run_tasks(square, [3, 1, 2], progress=seen.append)) == [(0, 9), (1, 1), (2, 4)]
    assert sum(seen) == 9
    assert list(run_tasks(square, [], workers=5)) == []


def test_an_error_ends_it_in_this_process() -> None:
    results = run_tasks(square, [1, -1, 2])
    assert next(results) == (0, 1)
    with pytest.raises(InputError, match="-1 is negative"):
        next(results)


@pytest.mark.parametrize(
    "arguments", [{"workers": -1}, {"in_flight": 0}, {"workers": 2, "scheduler": "tcp://127.0.0.1:1"}]
)
def test_arguments_that_contradict_each_other(arguments: dict) -> None:
    with pytest.raises(InputError, match="either workers"):
        list(run_tasks(square, [1], **arguments))


def test_no_scheduler_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardmine.pipeline.parallel._WAIT", 0.2)
    with pytest.raises(WorkerError, match=r"tcp://127\.0\.0\.1:1 .*Is it running"):
        list(run_tasks(square, [1], scheduler="tcp://127.0.0.1:1"))


def test_on_a_scheduler(scheduler: str) -> None:
    seen: list[int] = []
    results = list(run_tasks(square, range(40), scheduler=scheduler, progress=seen.append))
    assert sorted(results) == [(i, i * i) for i in range(40)]
    assert sum(seen) == 120


def test_no_more_than_in_flight_at_once(scheduler: str) -> None:
    lock, running, most = threading.Lock(), [0], [0]
    marks = {"lock": lock, "running": running, "most": most}
    COUNTERS.update(marks)
    assert len(list(run_tasks(counted, range(12), scheduler=scheduler, in_flight=1))) == 12
    assert most == [1]
    assert len(list(run_tasks(counted, range(12), scheduler=scheduler))) == 12
    assert most[0] <= 2


COUNTERS: dict = {}


def counted(task: int, advance: Advance) -> None:
    with COUNTERS["lock"]:
        COUNTERS["running"][0] += 1
        COUNTERS["most"][0] = max(COUNTERS["most"][0], COUNTERS["running"][0])
    time.sleep(0.02)
    with COUNTERS["lock"]:
        COUNTERS["running"][0] -= 1


def test_after_an_error_nothing_runs_on(scheduler: str) -> None:
    COUNTERS["ran"] = []
    with pytest.raises(InputError, match="task 3"):
        list(run_tasks(slow_or_bad, range(30), scheduler=scheduler))
    ran = list(COUNTERS["ran"])
    time.sleep(0.15)
    assert COUNTERS["ran"] == ran
    assert len(ran) < 8


def slow_or_bad(task: int, advance: Advance) -> None:
    if task == 3:
        raise InputError("task 3 is bad")
    time.sleep(0.05)
    COUNTERS["ran"].append(task)


def test_ingest_on_a_scheduler_gives_the_same_bytes(
    tmp_path: Path, scheduler: str, phototour: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    phototour(tmp_path / "src", 90, points=np.random.default_rng(0).integers(0, 30, 90).tolist())
    ingest("phototour", tmp_path / "src", tmp_path / "here", shard_rows=7, split="by-item:0.6")
    seen: list[tuple[int, int]] = []
    monkeypatch.chdir(tmp_path)
    ingest(
        "phototour",
        "src",
        "there",
        shard_rows=7,
        split="by-item:0.6",
        scheduler=scheduler,
        in_flight=4,
        progress=lambda *at: seen.append(at),
    )
    assert tree(tmp_path / "here") == tree(tmp_path / "there")
    assert seen[-1] == (90, 90)


def test_a_bad_item_under_fail_stops_and_the_rest_resumes(tmp_path: Path, scheduler: str, made_up: Callable) -> None:
    made_up(raw_label=np.arange(40), bad={9: "dark"})
    with pytest.raises(InputError, match="item 9: dark"):
        ingest("made-up", tmp_path, tmp_path / "s", shard_rows=2, on_bad="fail", scheduler=scheduler)
    assert not list((tmp_path / "s").rglob(".*.partial"))
    finished = len(list((tmp_path / "s/shards").glob("*.json")))
    assert 3 <= finished <= 6
    report = ingest("made-up", tmp_path, tmp_path / "s", shard_rows=2, scheduler=scheduler)
    assert report.resumed == finished
    ingest("made-up", tmp_path, tmp_path / "undisturbed", shard_rows=2)
    assert tree(tmp_path / "s") == tree(tmp_path / "undisturbed")
