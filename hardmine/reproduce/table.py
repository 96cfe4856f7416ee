"""The figures of a set beside the published ones: one summary for each row and column, and over the columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hardmine.metrics import LOWER_IS_BETTER
from hardmine.reproduce.ledger import Figure
from hardmine.reproduce.plan import UNTRAINED, CellId, Plan
from hardmine.reproduce.set_file import Row
from hardmine.reproduce.statistics import Summary, relative_change, summarise

RUN_SECONDS = 60.0  # what a run at the small scale should take at most, on two cores


@dataclass(frozen=True)
class Entry:
    """One row in one column. values: our figures in percent, one a seed. published: the paper's, in percent, and its
    change against the published figure of the baseline; None where there is none."""

    values: tuple[float, ...]
    summary: Summary | None
    published: float | None
    published_change: float | None


@dataclass(frozen=True)
class Heading:
    """A column: what it is called, its metric, and the stores trained and tested on ('' for the mean over columns)."""

    title: str
    metric: str
    lower_is_better: bool
    train: str = ""
    test: str = ""


@dataclass
class Table:
    """All of a set at one scale.

    entries: one list for each row of `rows`, in the order of `headings`. comparable: whether the published figures are
    of the same data. stores: role to the store's name. seconds: row to the mean seconds of a training. cells: how many
    there are to be; gaps: those without a figure, which `command` makes. failed: run to the reason. notes: what must be
    read with the figures.
    """

    title: str
    source: str
    scale: str
    rows: list[Row]
    headings: list[Heading]
    entries: list[list[Entry]]
    seeds: list[int]
    x_title: str | None
    stores: dict[str, str]
    figures: Mapping[CellId, Figure]
    seconds: dict[str, float]
    cells: int
    gaps: list[CellId]
    notes: list[str]
    command: str | None = None
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def comparable(self) -> bool:
        """Whether the published figures are of the same data and setting."""
        return self.scale == "paper"

    @property
    def has_published(self) -> bool:
        """Whether there is any published figure."""
        return any(entry.published is not None for row in self.entries for entry in row)

    def slow(self) -> list[str]:
        """Trainings at the small scale that took longer than RUN_SECONDS."""
        over = {
            f"{f.row} on {self.stores[f.train]}, seed {f.seed} ({f.training_seconds:.0f} s)"
            for f in self.figures.values()
            if f.training_seconds > RUN_SECONDS
        }
        return sorted(over) if self.scale == "small" else []

    def json(self) -> dict[str, Any]:
        """The table as a JSON object."""
        rows = {}
        for row, entries in zip(self.rows, self.entries):
            rows[row.name] = {
                heading.title: {"values": entry.values, **vars(entry.summary), "published": entry.published}
                for heading, entry in zip(self.headings, entries)
                if entry.summary is not None
            }
        return {
            "title": self.title,
            "scale": self.scale,
            "published_comparable": self.comparable,
            "rows": rows,
            "seconds_per_training": self.seconds,
            "cells": self.cells,
            "cells_missing": len(self.gaps),
            "command": self.command,
            "failed": self.failed,
            "slow": self.slow(),
            "notes": self.notes,
        }


def tabulate(plan: Plan, figures: Mapping[CellId, Figure]) -> Table:
    """The table of the figures that are there."""
    chosen, columns = plan.set, plan.set.columns
    stores = {role: place.store for role, place in plan.settings.stores.items()}
    measures = [chosen.measure_of(column) for column in columns]
    headings = []
    for column, measure in zip(columns, measures):
        train, test = (stores[role] for role in (column.train, column.test))
        title = f"{train} -> {test}" + (f", {measure}" if len(chosen.measures) > 1 else "")
        metric = chosen.measures[measure].metric
        headings.append(Heading(title, metric, metric in LOWER_IS_BETTER, train, test))
    values = {row.name: _values(plan, row, figures) for row in plan.rows}
    published = {row.name: [v if math.isfinite(v) else None for v in row.published] for row in plan.rows}
    if len(columns) > 1 and len(set(measures)) == 1:
        headings.append(Heading("mean", headings[0].metric, headings[0].lower_is_better))
        for row in plan.rows:
            values[row.name].append(_means(values[row.name]))
            known = [v for v in published[row.name] if v is not None]
            if published[row.name]:
                published[row.name].append(float(np.mean(known)) if len(known) == len(columns) else None)
    entries = []
    for row in plan.rows:
        of_row = []
        for i, heading in enumerate(headings):
            ours = [v for v in values[row.name][i] if v is not None]
            base = [v for v in values[row.baseline][i] if v is not None] if row.baseline in values else []
            theirs = published[row.name][i] if published[row.name] else None
            their_base = published[row.baseline][i] if row.baseline and published.get(row.baseline) else None
            change = None if theirs is None or their_base is None else relative_change(theirs, their_base)
            summary = summarise(ours, base, lower_is_better=heading.lower_is_better)
            of_row.append(Entry(tuple(ours), summary, theirs, change))
        entries.append(of_row)
    wanted = [cell for job in plan.jobs for cell in job.cells]
    trainings = {
        row.name: {(f.train, f.seed): f.training_seconds for f in figures.values() if f.row == row.name}
        for row in plan.rows
    }
    notes = [chosen.about, f"Scale {plan.scale}: {plan.settings.about}", plan.settings.note]
    notes += [f"{row.title}: {row.note}" for row in plan.rows if row.note]
    return Table(
        title=chosen.title,
        source=chosen.source,
        scale=plan.scale,
        rows=plan.rows,
        headings=headings,
        entries=entries,
        seeds=plan.seeds,
        x_title=chosen.x_title,
        stores=stores,
        figures=figures,
        seconds={
            name: float(np.mean(list(found.values())))
            for name, found in trainings.items()
            if found and UNTRAINED not in {t for t, _ in found}
        },
        cells=len(wanted),
        gaps=[cell for cell in wanted if cell not in figures],
        notes=[note for note in notes if note],
    )


def _values(plan: Plan, row: Row, figures: Mapping[CellId, Figure]) -> list[list[float | None]]:
    """Figures in percent: for each column, one for each seed (a contender: one), None where it is missing."""
    seeds = plan.seeds if row.recipe is not None else plan.seeds[:1]
    found = []
    for i, column in enumerate(plan.set.columns):
        metric = plan.set.measures[plan.set.measure_of(column)].metric
        cells = [figures.get(plan.cell(row, i, seed)) for seed in seeds]
        found.append([None if figure is None else 100 * figure.metrics[metric] for figure in cells])
    return found


def _means(columns: list[list[float | None]]) -> list[float | None]:
    """The mean over the columns for each seed that has all of them."""
    return [None if None in seed else float(np.mean([v for v in seed if v is not None])) for seed in zip(*columns)]
