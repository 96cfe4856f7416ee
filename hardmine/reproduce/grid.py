"""Grids: rows of a set that are every combination of a few parts, written once, and shared by sets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from hardmine.errors import InputError, UnknownNameError
from hardmine.options import Options, check

Tree = dict[str, Any]


class Part(Options):
    """What one choice along an axis adds to a row. title: joined to the other parts' by commas. set, paper, small: see
    `Row`. x: the row's place where the set is drawn as lines; the series is the title without this part's."""

    title: str
    set: dict[str, Any] = Field(default_factory=dict)
    paper: dict[str, Any] = Field(default_factory=dict)
    small: dict[str, Any] = Field(default_factory=dict)
    x: float | None = None
    note: str | None = None


class Grid(Options):
    """Rows of one recipe: every combination of the parts along the axes `over`, the last axis going round fastest. A
    row's name is its parts' names with hyphens between.

    only: axis to the parts that are used of it, all where it is not named. baseline: axis to the part that a row's
    baseline has in place of its own; a row that is its own baseline has none.
    """

    over: tuple[str, ...] = Field(min_length=1)
    recipe: str
    only: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    baseline: dict[str, str] = Field(default_factory=dict)
    scales: tuple[str, ...] | None = None


def based_on(base: Tree, tree: Tree, where: str) -> Tree:
    """The tree of a set's file with what it has of its base: rows and grids, before its own; each part and each scale
    that it does not define itself; measures, columns and x_title where it gives none. Not what is `published`.

    A part that it defines stands in the base's grids too, where the base has one of this name; a further one does not.
    base: one that can be `written_out`. Raises InputError."""
    axes: Tree = {axis: dict(parts) for axis, parts in base.get("parts", {}).items()}
    grids = [_pinned(grid, axes) for grid in base.get("grids", [])]
    for axis, parts in _table(tree.get("parts", {}), f"{where}: parts").items():
        axes.setdefault(axis, {}).update(_table(parts, f"{where}: parts.{axis}"))
    inherited: Tree = {key: base[key] for key in ("measures", "columns", "x_title") if key in base}
    scales: Tree = {**base.get("scales", {}), **_table(tree.get("scales", {}), f"{where}: scales")}
    found: Tree = {**inherited, **tree, "parts": axes, "scales": scales}
    found["rows"] = [*base.get("rows", []), *_list(tree.get("rows", []), f"{where}: rows")]
    found["grids"] = [*grids, *_list(tree.get("grids", []), f"{where}: grids")]
    return found


def written_out(tree: Tree, where: str) -> Tree:
    """The tree of a set with its `rows` and after them those of its `grids`, which are made of its `parts`, with the
    figures that are `published` of the latter (row to figures). where: the file, for messages. Raises UnknownNameError,
    InputError."""
    rows = _list(tree.get("rows", []), f"{where}: rows")
    axes = {
        axis: {
            name: _part(part, f"{where}: parts.{axis}.{name}") for name, part in _table(parts, f"parts.{axis}").items()
        }
        for axis, parts in _table(tree.get("parts", {}), f"{where}: parts").items()
    }
    made: dict[str, Tree] = {}
    for number, each in enumerate(_list(tree.get("grids", []), f"{where}: grids"), 1):
        place = f"{where}: grid {number}"
        for row in _rows(check(Grid, _table(each, place), place), axes, place):
            if row["name"] in made:
                raise InputError(f"{place}: another grid has the row {row['name']!r} already")
            made[row["name"]] = row
    for name, figures in _table(tree.get("published", {}), f"{where}: published").items():
        if name not in made:
            raise UnknownNameError(f"row of a grid in {where}: published.", name, made)
        made[name]["published"] = figures
    rest = {key: value for key, value in tree.items() if key not in ("parts", "grids", "published")}
    return {**rest, "rows": [*rows, *made.values()]}


def _pinned(grid: Tree, axes: Tree) -> Tree:
    """A grid that names the parts that it uses, so that further ones do not make rows of it."""
    every: Tree = {axis: list(axes[axis]) for axis in grid["over"]}
    return {**grid, "only": every | grid.get("only", {})}


def _rows(grid: Grid, axes: Mapping[str, Mapping[str, Part]], where: str) -> list[Tree]:
    for axis in grid.over:
        if axis not in axes:
            raise UnknownNameError(f"axis in {where}:", axis, axes)
    for axis in [*grid.only, *grid.baseline]:
        if axis not in grid.over:
            raise UnknownNameError(f"axis in {where}:", axis, grid.over)
    for axis, names in [*grid.only.items(), *((axis, (name,)) for axis, name in grid.baseline.items())]:
        for name in names:
            if name not in axes[axis]:
                raise UnknownNameError(f"part of {axis!r} in {where}:", name, axes[axis])
    choices = [grid.only.get(axis, tuple(axes[axis])) for axis in grid.over]
    rows = []
    for names in itertools.product(*choices):
        row = _row([axes[axis][name] for axis, name in zip(grid.over, names)], where)
        row |= {"name": "-".join(names), "recipe": grid.recipe}
        row |= {} if grid.scales is None else {"scales": grid.scales}
        baseline = "-".join(grid.baseline.get(axis, name) for axis, name in zip(grid.over, names))
        row |= {"baseline": baseline} if grid.baseline and baseline != row["name"] else {}
        rows.append(row)
    return rows


def _row(parts: Sequence[Part], where: str) -> Tree:
    """A row but for its name, recipe, baseline and published figures. Parts may not set the same key."""
    row: Tree = {"title": ", ".join(part.title for part in parts)}
    for section in ("set", "paper", "small"):
        keys = [key for part in parts for key in getattr(part, section)]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(
                f"{where}: two parts of {row['title']!r} set {twice!r}: one of them would be without effect"
            )
        row[section] = {key: value for part in parts for key, value in getattr(part, section).items()}
    notes = [part.note for part in parts if part.note]
    row |= {"note": " ".join(notes)} if notes else {}
    swept = [part for part in parts if part.x is not None]
    if len(swept) > 1:
        raise InputError(f"{where}: {row['title']!r} has two parts with an x: a row has one place on its line")
    if swept:
        series = ", ".join(part.title for part in parts if part.x is None)
        row |= {"x": swept[0].x, "series": series or row["title"]}
    return row


def _part(part: Any, where: str) -> Part:
    return check(Part, _table(part, where), where)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a table, not {value!r}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: expected a list of tables, each under [[{where.rpartition(' ')[2]}]]")
    return value
