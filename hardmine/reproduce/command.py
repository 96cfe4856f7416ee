"""`reproduce` as the command line asks for it: text in, tables and lines to print out."""

from __future__ import annotations

import sys
from pathlib import Path

from hardmine.errors import InputError
from hardmine.reproduce.run import MARKDOWN, Reproduced, reproduce
from hardmine.reproduce.set_file import ScaleName
from hardmine.reproduce.writing import Lines, beside, overview, remarks, shown_columns

SCREEN_COLUMNS = 4  # of the overview; more do not fit beside the rows' titles


def printed(found: Reproduced) -> tuple[dict[str, Lines], list[str]]:
    """Tables by title, the first line of each its header: our figures where they fit on a screen, then the columns to
    print with the published ones beside; and the lines that stand below them."""
    table = found.table
    title = f"{table.title}: {table.scale} scale, in percent"
    tables = {title: overview(table)} if len(table.headings) <= SCREEN_COLUMNS else {}
    tables |= {f"{title}: {table.headings[i].title}": beside(table, i) for i in shown_columns(table)}
    planned = [f"would run: {job}" for job in found.planned]
    done = f"{len(found.ran)} runs made; every column, with the published figures: {found.folder / MARKDOWN}"
    return tables, [*remarks(table), *planned, *([] if found.planned and not found.ran else [done])]


def run_command(
    name: str,
    data: Path,
    out: Path,
    scale: ScaleName,
    seeds: int | None,
    seed_list: str,
    rows: str,
    dry_run: bool,
    device: str | None,
) -> Reproduced:
    """Run a set; progress goes to stderr. seeds: their number. seed_list, rows: comma-separated. Raises InputError for
    both kinds of seeds, and for one that is no number; otherwise as `reproduce`."""
    if seeds is not None and seed_list:
        raise InputError("give --seeds or --seed-list, not both")
    chosen = None if seeds is None else list(range(seeds))
    if seed_list:
        try:
            chosen = [int(seed) for seed in seed_list.split(",")]
        except ValueError as error:
            raise InputError(f"--seed-list {seed_list}: expected numbers, as in 0,1,2") from error
    wanted = [row for row in rows.split(",") if row]
    return reproduce(
        name,
        data,
        out,
        scale,
        seeds=chosen,
        rows=wanted,
        dry_run=dry_run,
        device=device,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
