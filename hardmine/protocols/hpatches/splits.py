"""The HPatches benchmark's splits, with the order of their test sequences, which the random lists depend on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hardmine.errors import InputError
from hardmine.pipeline.readers.hpatches_names import SEQUENCES

TaskName = Literal["a", "b", "c", "illum", "view", "full", "all"]

# Places in SEQUENCES, in the order of the benchmark's tasks/splits/splits.json.
_A = """
    0 41 48 51 2 27 40 56 6 17 3 5 54 24 42 1 49 43 16 32 80 78 57 84 111 102 101 64 99 85 114 105 62 83 115 98
    93 95 68 72
"""
_B = """
    17 29 7 41 8 22 24 1 14 36 45 13 19 37 40 26 44 5 53 16 61 66 75 111 84 114 76 88 91 100 96 64 59 68 79 90
    104 58 105 109
"""
_C = """
    45 48 51 29 49 22 28 32 4 35 47 16 25 12 36 39 7 2 46 11 62 103 92 78 88 60 94 102 64 81 69 109 58 95 72 110
    86 84 93 113
"""
_ILLUM = """
    11 48 34 31 32 54 40 43 12 7 47 9 29 55 30 51 52 56 18 1 4 17 39 16 15 53 0 36 24 44 8 46 21 38 27 22 45 19
    23 49 50 5 26 6 10 28 20 25 33 41 2 14 13 37 3 35 42
"""
_VIEW = """
    77 75 79 61 94 102 91 105 78 73 87 114 82 90 83 70 99 72 60 92 98 89 108 113 110 58 104 106 74 57 81 65 59
    100 107 109 71 85 76 69 103 97 93 64 95 66 84 62 111 115 96 67 88 63 112 101 80 68 86
"""


def _names(places: str) -> tuple[str, ...]:
    return tuple(SEQUENCES[int(place)] for place in places.split())


_TEST = {"a": _names(_A), "b": _names(_B), "c": _names(_C), "illum": _names(_ILLUM), "view": _names(_VIEW)}
_TEST["full"] = _TEST["illum"] + _TEST["view"]


@dataclass(frozen=True)
class TaskSplit:
    """test: names of the sequences that are measured, in the benchmark's order. train: those that a normalisation may
    be fitted on; empty where the split has none."""

    name: str
    test: tuple[str, ...]
    train: tuple[str, ...]


def official_split(name: str, tasks: Path | None = None) -> TaskSplit:
    """The benchmark's split a, b, c (40 test, 76 train), illum (57), view (59) or full (116).

    tasks: the benchmark's folder of task files; its splits.json is read where it is there. Raises InputError where that
    file is not what it should be.
    """
    file = task_file(tasks, "splits.json")
    if file is None:
        train = tuple(sorted(set(SEQUENCES) - set(_TEST[name]))) if name in ("a", "b", "c") else ()
        return TaskSplit(name, _TEST[name], train)
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))[name]
        return TaskSplit(name, tuple(map(str, entry["test"])), tuple(map(str, entry.get("train", ()))))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} has no split {name!r} with a list `test`: give the benchmark's own file") from error


def task_file(tasks: Path | None, name: str) -> Path | None:
    """The task file called `name`, in the folder `tasks` or where the benchmark keeps it; None where it is not there.
    Raises InputError where `tasks` is no folder."""
    if tasks is None:
        return None
    if not tasks.is_dir():
        raise InputError(f"tasks={tasks} is not a folder: give the benchmark's folder of task files, or leave it out")
    return _file(tasks, name)


def _file(tasks: Path, name: str) -> Path | None:
    return next((file for file in (tasks / name, tasks / "splits" / name) if file.is_file()), None)
