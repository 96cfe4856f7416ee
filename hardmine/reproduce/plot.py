"""A set as a picture: points by row, or lines over a swept setting; hollow marks are the published figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hardmine.reproduce.table import Entry, Table
from hardmine.store.files import replacing


def draw(table: Table, file: Path) -> None:
    """Draw a panel for each column of the set to a PNG. Published figures are drawn at the paper's scale only."""
    from matplotlib.figure import Figure

    panels = len(table.headings)
    across = min(panels, 4)
    down = math.ceil(panels / across)
    height = 3.2 if table.x_title else 0.9 + 0.26 * len(table.rows)
    figure = Figure(figsize=(1.5 + 3.0 * across, 0.5 + height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=table.x_title is None)
    for place, axes in enumerate(grid.flat):
        if place >= panels:
            axes.set_visible(False)
            continue
        heading = table.headings[place]
        axes.set_title(heading.title, fontsize=9)
        column = [entries[place] for entries in table.entries]
        if table.x_title is None:
            _points(axes, table, column)
            axes.set_xlabel(f"{heading.metric}, %")
        else:
            _lines(axes, table, column)
            axes.set(xlabel=table.x_title, ylabel=f"{heading.metric}, %")
    figure.suptitle(f"{table.title} ({table.scale} scale)", fontsize=10)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def _points(axes: Any, table: Table, column: list[Entry]) -> None:
    heights = range(len(column))
    for height, entry in zip(heights, column):
        if entry.summary is not None:
            axes.errorbar(entry.summary.mean, height, xerr=entry.summary.deviation, fmt="o", color="C0", capsize=2)
            axes.plot(entry.values, [height] * len(entry.values), "|", color="C0", alpha=0.5)
        if entry.published is not None and table.comparable:
            axes.plot(entry.published, height, "o", color="C3", fillstyle="none")
    axes.set_yticks(list(heights), [row.title for row in table.rows], fontsize=8)
    axes.set_ylim(len(column) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.3)


def _lines(axes: Any, table: Table, column: list[Entry]) -> None:
    places = sorted({row.x for row in table.rows if row.x is not None})  # equally spaced: a sweep may end at infinity
    for number, series in enumerate(dict.fromkeys(row.series for row in table.rows)):
        found = [
            (places.index(row.x), entry)
            for row, entry in zip(table.rows, column)
            if row.series == series and row.x is not None
        ]
        ours = sorted((x, e.summary.mean, e.summary.deviation or 0) for x, e in found if e.summary is not None)
        if ours:
            x, mean, deviation = zip(*ours)
            axes.errorbar(x, mean, yerr=deviation, fmt="o-", color=f"C{number}", capsize=2, markersize=3, label=series)
        if table.comparable and (theirs := [(x, e.published) for x, e in found if e.published is not None]):
            axes.plot(*zip(*theirs), "o", color=f"C{number}", fillstyle="none")
    axes.set_xticks(range(len(places)), [f"{place:g}" for place in places], fontsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
    axes.grid(linewidth=0.3)
