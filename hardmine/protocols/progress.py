"""A progress bar in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(unit: str) -> Iterator[Any]:
    """A progress bar on stderr, with rate and time left; gives the function to call with (done, total[, figures])."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(unit, total=None, rate="")

        def progress(done: int, total: int, figures: dict[str, float] | None = None) -> None:
            text = unit + "".join(f"  {k} {v:.4g}" for k, v in (figures or {}).items())
            speed = shown.tasks[0].speed
            rate = f"{speed:,.{0 if speed >= 10 else 2}f} {unit}/s" if speed else ""
            shown.update(task, completed=done, total=total, description=text, rate=rate)

        yield progress
