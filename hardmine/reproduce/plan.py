"""What a set comes down to at one scale: runs (a row, a training store, a seed) and the cells measured on each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.protocols.base import protocol
from hardmine.reproduce.set_file import Place, ReproduceSet, Row, ScaleName, override_text
from hardmine.reproduce.stores import open_store, store_path
from hardmine.store.files import sha256_file
from hardmine.train.recipe import Recipe, load_recipe

UNTRAINED = "-"  # the training store of a contender
_WEIGHTS, _FOLDER = "network.weights", "{weights}/"

sha256_once = cache(sha256_file)  # a set's runs share large weights files


@dataclass(frozen=True, order=True)
class CellId:
    """One figure. train: role trained on, '-' for a contender; seed: 0 for a contender."""

    row: str
    train: str
    test: str
    measure: str
    seed: int


@dataclass(frozen=True)
class Job:
    """A row trained once, or a contender, and the cells measured on it. store: name of the store trained on."""

    row: Row
    train: str
    seed: int
    cells: tuple[CellId, ...]
    store: str

    def __str__(self) -> str:
        return self.row.name if self.train == UNTRAINED else f"{self.row.name} on {self.store}, seed {self.seed}"


class Plan:
    """A set at one scale over a folder of stores. Raises what the set's recipes, protocols and rows are wrong in."""

    def __init__(self, chosen: ReproduceSet, scale: ScaleName, folder: Path, seeds: Sequence[int] | None = None):
        if scale not in chosen.scales:
            raise InputError(f"this set has no scale {scale!r}; it has {', '.join(chosen.scales)}")
        self.set, self.scale, self.folder = chosen, scale, folder
        self.settings = chosen.scales[scale]
        self.rows = chosen.rows_at(scale)
        self.seeds = list(range(self.settings.seeds)) if seeds is None else list(dict.fromkeys(seeds))
        if not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds {self.seeds}: give at least one, none below 0")
        for name in chosen.measures:
            protocol(chosen.measures[name].protocol, self.options(name))  # a wrong option is said before any training

    @cached_property
    def jobs(self) -> list[Job]:
        """Every run of the set, all rows of one seed before the next seed, so that a partial table can be compared."""
        found: dict[tuple[str, str, int], Job] = {}
        for seed in self.seeds:
            for row in self.rows:
                for train in dict.fromkeys(self.cell(row, i, seed).train for i in range(len(self.set.columns))):
                    cells = [self.cell(row, i, seed) for i in range(len(self.set.columns))]
                    own = tuple(dict.fromkeys(c for c in cells if c.train == train))
                    store = UNTRAINED if train == UNTRAINED else self.place(train).store
                    found.setdefault((row.name, train, own[0].seed), Job(row, train, own[0].seed, own, store))
        return list(found.values())

    def cell(self, row: Row, column: int, seed: int) -> CellId:
        """The figure of a row in a column for a seed; several columns may show the same one."""
        where = self.set.columns[column]
        measure = self.set.measure_of(where)
        if row.contender is not None:
            return CellId(row.name, UNTRAINED, where.test, measure, 0)
        return CellId(row.name, row.train or where.train, where.test, measure, seed)

    def chosen_rows(self, names: Sequence[str]) -> list[Row]:
        """The rows called `names`, all for none. Raises UnknownNameError."""
        known = {row.name: row for row in self.rows}
        for name in names:
            if name not in known:
                raise UnknownNameError(f"row at scale {self.scale!r}", name, known)
        return [row for row in self.rows if not names or row.name in names]

    def place(self, role: str) -> Place:
        """The store and split of a role."""
        return self.settings.stores[role]

    def path(self, role: str) -> Path:
        """Path of a role's patch store."""
        return store_path(self.folder, self.place(role).store)

    def options(self, measure: str) -> dict[str, Any]:
        """Options of a measure's protocol; {data} in a text is the folder of the stores."""
        return {
            name: value.replace("{data}", str(self.folder)) if isinstance(value, str) else value
            for name, value in self._options(measure).items()
        }

    def recipe(self, job: Job, files: Mapping[str, str] | None = None) -> Recipe:
        """The recipe of a run, with the set's, the scale's and the row's overrides, its store and its seed. {weights}
        in network.weights is the folder DATA/weights. files: what the row takes of the run of its `source`, kind to
        path. Raises MissingError where the weights are not there."""
        assert job.row.recipe is not None  # contenders are not trained
        place, taken = self.place(job.train), job.row.from_run
        overrides = {**self.settings.set, **job.row.overrides(self.scale), "train.seed": job.seed}
        if isinstance(start := overrides.get(_WEIGHTS), str) and start.startswith(_FOLDER):
            overrides[_WEIGHTS] = str(self._weights_file(start.removeprefix(_FOLDER), job.row))
        if taken is not None:
            overrides["train.seed"] = job.seed + taken.shift_seed
            overrides |= {option: (files or {})[kind] for option, kind in taken.bind.items()}
        overrides |= {"data.store": str(self.path(job.train))} | ({"data.split": place.split} if place.split else {})
        return load_recipe(job.row.recipe, [override_text(key, value) for key, value in overrides.items()])

    def source(self, job: Job) -> Job | None:
        """The training that this one takes files of. Raises InputError where it has no policy."""
        taken = job.row.from_run
        if taken is None:
            return None
        row = next(row for row in self.set.rows if row.name == taken.row)
        train = taken.train or row.train or job.train
        found = Job(row, train, job.seed, (), self.place(train).store)
        nested = {"policy": "-", "distribution": "-"}  # only to look at the rest
        if self.recipe(found, nested).policy is None:
            raise InputError(f"row {job.row.name!r} takes files of row {row.name!r}, which trains no [policy]")
        return found

    def contender(self, row: Row) -> str:
        """A contender as `evaluate --compare` takes it. Raises MissingError where its weights are not there."""
        assert row.contender is not None
        return row.contender.replace("{weights}", str(self.weights(row) or ""))

    def weights(self, row: Row) -> Path | None:
        """A contender's weights file. Raises MissingError."""
        return None if row.weights is None else self._weights_file(row.weights, row)

    def _weights_file(self, name: str, row: Row) -> Path:
        file = self.folder / "weights" / name
        if not file.is_file():
            raise MissingError(f"row {row.name!r} needs the published weights {file}: put the file there")
        return file

    def key(self, job: Job, cell: CellId) -> str:
        """Hex SHA-256 of everything that fixes a figure: recipe or contender, seed, content of the stores, protocol and
        options; not of where the stores lie. Raises MissingError where a store or a weights file is not there."""
        if job.row.recipe is not None:
            made_of = self._identity(job)
        else:
            file = self.weights(job.row)
            made_of = [str(job.row.contender), "" if file is None else sha256_once(file)]
        place = self.place(cell.test)
        tested = open_store(self.folder, place.store)
        content = [tested.fingerprint, *(pairs.sha256 for pairs in tested.manifest.pairs)]
        how = [self.set.measures[cell.measure].protocol, self._options(cell.measure), place.split]
        return hashlib.sha256(json.dumps([made_of, content, how], sort_keys=True).encode()).hexdigest()

    def _identity(self, job: Job) -> list[str]:
        """What fixes a training, wherever stores, weights and runs lie: digest of the recipe, content of the store."""
        source, files = self.source(job), dict[str, str]()
        if source is not None:
            of = hashlib.sha256(json.dumps(self._identity(source)).encode()).hexdigest()
            files = {kind: f"{kind} of {of}" for kind in ("policy", "distribution")}
        recipe = self.recipe(job, files)
        placeless = recipe.model_copy(update={"data": recipe.data.model_copy(update={"store": job.train})})
        if recipe.network.weights is not None:
            network = recipe.network.model_copy(update={"weights": sha256_once(Path(recipe.network.weights))})
            placeless = placeless.model_copy(update={"network": network})
        return [placeless.digest(), open_store(self.folder, self.place(job.train).store).fingerprint]

    def _options(self, measure: str) -> dict[str, Any]:
        return {**self.set.measures[measure].options, **self.settings.options.get(measure, {})}
