"""A table as Markdown, as CSV, and as the tables that the command line prints."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from hardmine.reproduce.plan import UNTRAINED, CellId
from hardmine.reproduce.statistics import LEAST_SEEDS
from hardmine.reproduce.table import Entry, Table
from hardmine.store.files import write_atomic

Lines = list[list[str]]  # the first is the header


def overview(table: Table) -> Lines:
    """Our figures: a line for each row, a column for each column of the set, and the seconds of a training."""
    lines = [["", *(heading.title for heading in table.headings), "s a training"]]
    for row, entries in zip(table.rows, table.entries):
        seconds = table.seconds.get(row.name)
        lines.append([row.title, *map(_ours, entries), "" if seconds is None else f"{seconds:.0f}"])
    return lines


def beside(table: Table, column: int) -> Lines:
    """One column of the set: our figures, their change against the row's baseline and p, and the published ones."""
    titles = {row.name: row.title for row in table.rows}
    theirs = "published" if table.comparable else "published, other data"
    summaries = [entries[column].summary for entries in table.entries]
    tested = any(summary is not None and summary.p is not None for summary in summaries)
    header = ["", "ours", "seeds", "baseline", "change"] + ["p"] * tested
    lines = [header + [theirs, "its change"] * table.has_published]
    for row, entries, s in zip(table.rows, table.entries, summaries):
        entry = entries[column]
        line = [row.title, _ours(entry), str(len(entry.values)), titles.get(row.baseline or "", "")]
        line += [_change(s.change if s else None)]
        line += [("" if s is None or s.p is None else f"{s.p:.3g}")] * tested
        published = "" if entry.published is None else f"{entry.published:.2f}"
        lines.append(line + [published, _change(entry.published_change)] * table.has_published)
    return lines


def shown_columns(table: Table) -> list[int]:
    """The columns to print on a screen: the mean where there is one, else all."""
    last = len(table.headings) - 1
    return [last] if not table.headings[last].test else list(range(len(table.headings)))


def remarks(table: Table) -> list[str]:
    """What must be read with the figures."""
    directions = {h.metric: "lower" if h.lower_is_better else "higher" for h in table.headings}
    found = ["In percent; " + "; ".join(f"{metric}: {way} is better" for metric, way in directions.items()) + "."]
    if len(table.seeds) > 1:
        found.append(f"Mean and sample deviation over the seeds {', '.join(map(str, table.seeds))}.")
    found.append(
        "Change: relative to the row's baseline. p: one-sided Mann-Whitney U test of being better than the baseline, "
        f"where both have at least {LEAST_SEEDS} seeds."
    )
    if table.has_published and not table.comparable:
        found.append(
            "The published figures are of other data at another scale: no figure here is to be read against them."
        )
    if not table.has_published:
        found.append("No published figure of this table is recorded here.")
    found += table.notes
    if slow := table.slow():
        found.append(f"WARNING: {len(slow)} trainings took more than 60 s: {'; '.join(slow)}.")
    found += [f"FAILED: {job}: {reason}" for job, reason in table.failed.items()]
    if table.gaps:
        first = "; ".join(_place(cell, table.stores) for cell in table.gaps[:6])
        more = f"; and {len(table.gaps) - 6} more" if len(table.gaps) > 6 else ""
        found.append(
            f"PARTIAL: {len(table.gaps)} of {table.cells} cells are missing ({first}{more}). They are made by:"
        )
        found.append(str(table.command))
    return found


def write_markdown(table: Table, file: Path, plot: str) -> None:
    """Write the overview, a table for each column with the published figures beside, and the remarks."""
    parts = [f"# {table.title}", f"{table.source}. Scale: {table.scale}.", _markdown(overview(table))]
    parts += ["\n".join(f"- {_code(remark)}" for remark in remarks(table)), f"![{table.title}]({plot})"]
    for i, heading in enumerate(table.headings):
        parts += [f"## {heading.title}", _markdown(beside(table, i))]
    write_atomic(file, ("\n\n".join(parts) + "\n").encode())


def write_csv(table: Table, file: Path) -> None:
    """Write one line for each row and column: our figures of each seed and their summary, and the published one."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    header = "row train test metric seeds values mean deviation baseline change p published published_change"
    out.writerow([*header.split(), "published_is_of_this_data", "seconds_a_training"])
    for row, entries in zip(table.rows, table.entries):
        for heading, entry in zip(table.headings, entries):
            s = entry.summary
            train = "" if row.contender else (table.stores[row.train] if row.train else heading.train)
            line = [row.name, train, heading.test or heading.title, heading.metric, len(entry.values)]
            line += [";".join(map(repr, entry.values)), *_cells(s.mean if s else None, s.deviation if s else None)]
            line += [row.baseline or "", *_cells(s.change if s else None, s.p if s else None)]
            line += _cells(entry.published, entry.published_change)
            out.writerow([*line, str(table.comparable).lower(), *_cells(table.seconds.get(row.name))])
    write_atomic(file, text.getvalue().encode())


def _place(cell: CellId, stores: dict[str, str]) -> str:
    if cell.train == UNTRAINED:
        return f"{cell.row} on {stores[cell.test]}"
    return f"{cell.row}: {stores[cell.train]} -> {stores[cell.test]}, seed {cell.seed}"


def _ours(entry: Entry) -> str:
    if entry.summary is None:
        return "-"
    deviation = "" if entry.summary.deviation is None else f" ± {entry.summary.deviation:.2f}"
    return f"{entry.summary.mean:.2f}{deviation}"


def _change(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def _cells(*values: float | None) -> list[str]:
    return ["" if value is None else repr(value) for value in values]


def _markdown(lines: Lines) -> str:
    header, *rest = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rest))


def _code(remark: str) -> str:
    return f"`{remark}`" if remark.startswith("hardmine ") else remark
