"""What the command line prints: JSON for machines, tables and a progress bar for people."""

from __future__ import annotations

import json as jsonlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

WIDE = 8  # columns; more do not fit a page, and would be cut off


@contextmanager
def bar(unit: str, shown: bool = True) -> Iterator[Any]:
    """A progress bar on stderr, with rate and time left; gives the function to call with (done, total[, figures]). It
    is for terminals: elsewhere, and where it is not to be `shown`, nothing is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (shown and console.is_interactive):
        yield lambda done, total, figures=None: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(unit, total=None, rate="")

        def progress(done: int, total: int, figures: dict[str, float] | None = None) -> None:
            text = unit + "".join(f"  {k} {v:.4g}" for k, v in (figures or {}).items())
            speed = bars.tasks[0].speed
            rate = f"{speed:,.{0 if speed >= 10 else 2}f} {unit}/s" if speed else ""
            bars.update(task, completed=done, total=total, description=text, rate=rate)

        yield progress


def show(facts: dict[str, Any], json: bool, title: str) -> None:
    """Facts as one JSON object, or as a table of two columns."""
    if json:
        print_json(facts)
    else:
        table(title, ["", ""], [[_words(key), plain(value)] for key, value in facts.items()])


def show_parts(found: dict[str, Any], json: bool) -> None:
    """Several facts, by title, as one JSON object, or as a table for each list of rows and each dict, a line else. Of
    few rows with many columns, each row is a column of the table."""
    if json:
        print_json(found)
        return
    for title, value in found.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            columns, rows = [_words(name) for name in value[0]], [[plain(v) for v in row.values()] for row in value]
            if len(columns) > WIDE and len(rows) < len(columns):  # the longer side goes down the page
                columns, *rows = [list(line) for line in zip(columns, *rows)]
            table(title, columns, rows)
        elif isinstance(value, dict):
            table(title, ["", ""], [[k, plain(v)] for k, v in value.items()])
        else:
            typer.echo(f"{title}: {plain(value)}")


def show_report(report: Any, json: bool) -> None:
    """What `evaluate` found: its JSON, or the headline numbers in percent by descriptor, every further number by name
    where there are any, and what is to be said of it."""
    if json:
        print_json(report.json())
        return
    title, results = f"{report.protocol} on {report.store}", report.results
    first = next(iter(results.values()))
    rows = [[name, *(f"{100 * value:.2f} %" for value in r.metrics.values())] for name, r in results.items()]
    table(title, ["descriptor", *first.metrics], rows)
    cells = list(dict.fromkeys(name for r in results.values() for name in r.details))
    lines = [[name, *(f"{r.details[c]:.4f}" if c in r.details else "" for c in cells)] for name, r in results.items()]
    if len(cells) > len(results):  # the longer side goes down the page
        table("details", ["", *results], [list(line) for line in zip(*[["", *cells], *lines])][1:])
    elif cells:
        table("details", ["descriptor", *cells], lines)
    shared = {k: v for k, v in first.facts.items() if all(r.facts.get(k) == v for r in results.values())}
    typer.echo("  ".join(f"{key}: {value}" for key, value in shared.items()))
    typer.echo(f"rows embedded: {report.embedded}" + (f" (round {report.round})" if report.round is not None else ""))
    for message in report.messages:
        typer.echo(message)


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table on stdout; without a header where all columns are nameless."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left", show_header=any(columns))
    for name in columns:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*row)
    Console(markup=False).print(shown)  # names may hold brackets


def plain(value: Any) -> str:
    """A value as the cell of a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "\n".join(f"{k}: {plain(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return "\n".join(plain(v) for v in value) or "none"
    return "none" if value is None else str(value)


def print_json(value: Any) -> None:
    """One JSON object on stdout. JSON has no number for infinity and for what is none: they become the texts
    "Infinity", "-Infinity" and "NaN"."""
    typer.echo(jsonlib.dumps(_finite(value), sort_keys=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _words(key: str) -> str:
    """A key as words; one that holds spaces is worded already, and may quote names with underscores."""
    return key if " " in key else key.replace("_", " ")
