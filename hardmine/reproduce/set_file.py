"""A set: the rows, columns, settings and published figures of one experiment, as a closed TOML file."""

from __future__ import annotations

import itertools
import math
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.options import Options, check
from hardmine.reproduce.grid import based_on, written_out

ScaleName = Literal["paper", "small"]
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)
_SETS = Path(__file__).with_name("sets")


class Measure(Options):
    """protocol, options: as `evaluate` takes them. metric: the one that is shown, a rate in 0..1, in percent."""

    protocol: str
    metric: str
    options: dict[str, Any] = Field(default_factory=dict)


class Column(Options):
    """What a figure is of: trained on the role `train`, measured on the role `test`, by the measure `measure` (not
    needed where the set has one). Roles are bound to patch stores by each scale."""

    train: str
    test: str
    measure: str = ""


class FromRun(Options):
    """What a training takes from a run of another row, which is trained first: of the same scale and seed, and of the
    same training store or of the role `train`.

    bind: option of the recipe to the file that it names, "policy", the policy at the end of that run with the
    distribution it was at work on, or "distribution", the latter alone. shift_seed: added to this row's own seed, so
    that its initial weights and batches are others than those of the run that it takes from.
    """

    row: str
    bind: dict[str, Literal["policy", "distribution"]] = Field(min_length=1)
    train: str | None = None
    shift_seed: int = Field(0, ge=0)


class Row(Options):
    """A method. Either recipe, with overrides `set` and further ones of each scale, or contender: one that needs no
    training, spelt as for `evaluate --compare`, where {weights} is the file `weights` of the folder DATA/weights.

    train: a role to train on in place of the columns'. from_run: files of another row's run that it needs. scales:
    those it is run at. baseline: the row that it is compared with. published: the paper's figures in percent, one for
    each column, NaN where there is none. series, x: the line it belongs to and its place on it, where the set is drawn
    as lines. note: printed below the table.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.+*-]*$")
    title: str
    recipe: str | None = None
    contender: str | None = None
    weights: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    paper: dict[str, Any] = Field(default_factory=dict)
    small: dict[str, Any] = Field(default_factory=dict)
    train: str | None = None
    from_run: FromRun | None = None
    scales: tuple[ScaleName, ...] = SCALES
    baseline: str | None = None
    published: tuple[float, ...] = ()
    series: str | None = None
    x: float | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _trained_or_not(self) -> Row:
        if (self.recipe is None) == (self.contender is None):
            raise ValueError(f"row {self.name!r}: give either a recipe or a contender")
        if self.contender is not None and (self.set or self.paper or self.small or self.train or self.from_run):
            raise ValueError(
                f"row {self.name!r}: a contender is not trained: leave out set, paper, small, train and from_run"
            )
        if (self.weights is None) != ("{weights}" not in (self.contender or "")):
            raise ValueError(f"row {self.name!r}: weights and {{weights}} in the contender go together")
        if (self.series is None) != (self.x is None):
            raise ValueError(f"row {self.name!r}: series and x go together")
        return self

    def overrides(self, scale: ScaleName) -> dict[str, Any]:
        """The row's own overrides at a scale."""
        return {**self.set, **(self.paper if scale == "paper" else self.small)}


class Place(Options):
    """A patch store by its name in DATA, and one of its splits (not needed where it has one)."""

    store: str
    split: str | None = None


class Scale(Options):
    """How a set is run. about: the setting in words. seeds: number of seeds, 0, 1, .... stores: role to patch store.
    set: overrides of every trained row. options: measure to further options of its protocol. note: see `Row`."""

    about: str
    seeds: int = Field(1, ge=1)
    stores: dict[str, Place]
    set: dict[str, Any] = Field(default_factory=dict)
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    note: str | None = None


class ReproduceSet(Options):
    """A whole set. source: paper and table. x_title: the axis of a set that is drawn as lines."""

    title: str
    source: str
    about: str = ""
    x_title: str | None = None
    measures: dict[str, Measure]
    columns: tuple[Column, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)
    scales: dict[ScaleName, Scale]

    @model_validator(mode="after")
    def _names_fit(self) -> ReproduceSet:
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise ValueError(f"two rows are called {next(n for n in names if names.count(n) > 1)!r}")
        for column in self.columns:
            if column.measure not in self.measures and not (len(self.measures) == 1 and not column.measure):
                raise ValueError(f"column {column.train} -> {column.test}: no measure {column.measure!r}")
        for row in self.rows:
            if row.baseline is not None and row.baseline not in names:
                raise ValueError(f"row {row.name!r}: its baseline {row.baseline!r} is no row")
            if row.published and len(row.published) != len(self.columns):
                raise ValueError(f"row {row.name!r}: {len(row.published)} published figures for {len(self.columns)}")
            if (row.x is not None) != (self.x_title is not None):
                raise ValueError(f"row {row.name!r}: a set with an x_title gives every row an x, and only such a set")
            if row.from_run is not None:
                self._source_fits(row, row.from_run.row)
        for name, scale in self.scales.items():
            rows = [row for row in self.rows if name in row.scales]
            trained = {role for row in rows for role in (row.train, row.from_run and row.from_run.train) if role}
            roles = {role for column in self.columns for role in (column.train, column.test)} | trained
            if missing := sorted(roles - set(scale.stores)):
                raise ValueError(f"scale {name!r} binds no store to the role {missing[0]!r}")
            if unknown := sorted(set(scale.options) - set(self.measures)):
                raise ValueError(f"scale {name!r} gives options of {unknown[0]!r}, which is no measure")
        return self

    def _source_fits(self, row: Row, name: str) -> None:
        before = {each.name: each for each in itertools.takewhile(lambda each: each is not row, self.rows)}
        if name not in before:
            raise ValueError(f"row {row.name!r}: from_run names {name!r}, which is no row before it")
        if before[name].recipe is None or not set(row.scales) <= set(before[name].scales):
            raise ValueError(f"row {row.name!r}: from_run names {name!r}, which is not trained at all of its scales")

    def measure_of(self, column: Column) -> str:
        """The name of a column's measure."""
        return column.measure or next(iter(self.measures))

    def rows_at(self, scale: ScaleName) -> list[Row]:
        """The rows that are run at a scale."""
        return [row for row in self.rows if scale in row.scales]


def shipped_sets() -> dict[str, Path]:
    """The sets that come with hardmine, name to file."""
    return {path.stem: path for path in sorted(_SETS.glob("*.toml"))}


def load_set(name: str) -> ReproduceSet:
    """A set by its name, or by the path of one's own TOML file. Raises UnknownNameError, MissingError, InputError.

    `parts` and `grids` in the file stand for rows, and `published` names their figures (see `grid`). `base`: a shipped
    set, or a file beside this one, whose rows come before the file's own (see `based_on`).
    """
    file = _find(name, None)
    return check(ReproduceSet, written_out(_tree(file), str(file)), str(file))


def _find(name: str, beside: Path | None) -> Path:
    """The file of a set. beside: the file that names it."""
    file = Path(name) if beside is None else beside.parent / name
    if file.is_file():
        return file
    if Path(name).suffix or Path(name).name != name:
        raise MissingError(f"no set at {file}" + (f", the base of {beside}" if beside else ""))
    if name not in shipped_sets():
        raise UnknownNameError("set", name, shipped_sets())
    return shipped_sets()[name]


def _tree(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tree of a set's file, with what it has of its base. above: the files that it is a base of."""
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not a TOML file: {error}") from error
    known = {*ReproduceSet.model_fields, "base", "parts", "grids", "published"}
    for key in tree:
        if key not in known:
            raise UnknownNameError(f"key in {file}:", key, known)
    if "base" not in tree:
        return tree
    below = _find(str(tree.pop("base")), file)
    if below.resolve() in {each.resolve() for each in (file, *above)}:
        raise InputError(f"{file}: its base {below} is based on it")
    base = _tree(below, (file, *above))
    written_out(base, str(below))  # what is wrong in the base is said of the base
    return based_on(base, tree, str(file))


def override_text(key: str, value: Any) -> str:
    """An override as `--set` takes it, key=value with the value as in TOML."""
    return f"{key}={_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # TOML's own words: inf, nan
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
