"""`reproduce`: plan the cells of a set, run what is missing, and write what there is as a table and a plot."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hardmine.errors import InputError, MissingError, NumericalError
from hardmine.protocols.contenders import contender
from hardmine.protocols.evaluate import evaluate, score, splits_of
from hardmine.protocols.pads_report import save_policy_of
from hardmine.reproduce.ledger import Figure, Ledger
from hardmine.reproduce.plan import UNTRAINED, CellId, Job, Plan, sha256_once
from hardmine.reproduce.plot import draw
from hardmine.reproduce.set_file import ScaleName, load_set
from hardmine.reproduce.stores import open_store
from hardmine.reproduce.table import Table, tabulate
from hardmine.reproduce.writing import write_csv, write_markdown
from hardmine.store.files import write_lock
from hardmine.train.loop import train
from hardmine.train.runs import Run, load

LEDGER, CSV, MARKDOWN, PLOT = "figures.json", "results.csv", "results.md", "results.png"

Say = Callable[[str], None]


@dataclass
class Reproduced:
    """folder: where the results are. table: what was found. ran, done_before: jobs of this call that were run, and that
    needed no running. planned: those that a dry run would run."""

    folder: Path
    table: Table
    ran: list[str] = field(default_factory=list)
    done_before: list[str] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """All of it as a JSON object."""
        did = {"ran": self.ran, "done_before": self.done_before, "planned": self.planned}
        return {"folder": str(self.folder), **did, **self.table.json()}


def reproduce(
    name: str,
    folder: str | Path,
    out: str | Path = "reproduce",
    scale: ScaleName = "small",
    *,
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] = (),
    dry_run: bool = False,
    device: str | torch.device | None = None,
    say: Say = lambda _: None,
) -> Reproduced:
    """Run a set in OUT/NAME-SCALE, or go on with it: finished figures are read back, an unfinished run continues.

    name: a shipped set, or a TOML file. folder: the patch stores, each NAME.store, and weights/. seeds, rows: a part of
    the set; the table shows the other rows too, as far as they were run before. dry_run: only say what would be run.
    say: called with one line for each thing done. Runs lie in OUT/runs, by recipe and data, so that sets share equal
    ones. A run whose loss or descriptors are not finite is reported as failed, and the next one goes on.

    Raises InputError, MissingError (a store, with the command that writes it), UnknownNameError, LockedError, and what
    training and evaluating raise.
    """
    plan = Plan(load_set(name), scale, Path(folder), seeds)
    chosen = plan.chosen_rows(rows)
    jobs = [job for job in plan.jobs if job.row in chosen]
    keys = {cell: plan.key(job, cell) for job in jobs for cell in job.cells}  # every fault of the inputs is said here
    for row in chosen:
        if row.contender is not None:
            contender(plan.contender(row))
    call = _Call(plan, name, Path(out), keys, device, say)
    if not dry_run:
        with write_lock(call.target, "the results"):
            return call.run(jobs)
    ledger = Ledger.read(call.target / LEDGER)
    planned = [str(job) for job in jobs if not call.finished(job, ledger)]
    before = [str(job) for job in jobs if call.finished(job, ledger)]
    return Reproduced(call.target, call.table(ledger), done_before=before, planned=planned)


class _Call:
    """One call of `reproduce`."""

    def __init__(
        self,
        plan: Plan,
        name: str,
        out: Path,
        keys: dict[CellId, str],
        device: str | torch.device | None,
        say: Say,
    ):
        self.plan, self.name, self.out, self.keys, self.device, self.say = plan, name, out, keys, device, say
        self.target, self.runs = out / f"{Path(name).stem}-{plan.scale}", out / "runs"
        self.failed: dict[str, str] = {}

    def run(self, jobs: list[Job]) -> Reproduced:
        """Run what is missing; the table is written anew after each run, and drawn at the end."""
        ledger = Ledger.read(self.target / LEDGER)
        ran, before = list[str](), list[str]()
        for number, job in enumerate(jobs, 1):
            if self.finished(job, ledger):
                before.append(str(job))
                continue
            self.say(f"[{number}/{len(jobs)}] {job}")
            try:
                for figure in self._figures(job, ledger):
                    ledger.add([figure])
                ran.append(str(job))
            except NumericalError as error:
                self.failed[str(job)] = str(error)
                self.say(f"  failed: {error}")
            self._write(self.table(ledger))
        found = self.table(ledger)
        self._write(found)
        draw(found, self.target / PLOT)
        return Reproduced(self.target, found, ran, before)

    def finished(self, job: Job, ledger: Ledger) -> bool:
        """Whether every figure of a job is there."""
        return all(ledger.get(cell, self.keys[cell]) is not None for cell in job.cells)

    def table(self, ledger: Ledger) -> Table:
        """The table of every figure of the set that is there, those of rows that were not chosen included."""
        figures = {}
        for job in self.plan.jobs:
            for cell in job.cells:
                try:
                    figure = ledger.get(cell, self.keys.get(cell) or self.plan.key(job, cell))
                except MissingError:  # a row that was not chosen, whose store is not there: its cell is missing
                    continue
                if figure is not None:
                    figures[cell] = figure
        found = tabulate(self.plan, figures)
        found.failed = dict(self.failed)
        if found.gaps:
            found.command = _command(self.name, self.plan, self.out, found.gaps)
        return found

    def _figures(self, job: Job, ledger: Ledger) -> Iterable[Figure]:
        """Train and measure: the figures of a job that are not there yet."""
        trained, seconds = (None, 0.0) if job.train == UNTRAINED else self._train(job)
        for cell in job.cells:
            if ledger.get(cell, self.keys[cell]) is not None:
                continue
            began = time.perf_counter()
            measure, place = self.plan.set.measures[cell.measure], self.plan.place(cell.test)
            common: dict[str, Any] = {"split": place.split, "options": self.plan.options(cell.measure)}
            common |= {"device": self.device}
            store = self.plan.path(cell.test)
            if trained is None:
                mining = self.runs / f"{job.row.name}.mining"
                report = evaluate(measure.protocol, store, mining, compare=[self.plan.contender(job.row)], **common)
            else:
                report = evaluate(
                    measure.protocol, store, trained / "mining", network=load(trained), name=job.row.name, **common
                )
            result = next(iter(report.results.values()))
            metrics = {**result.details, **result.metrics}
            if measure.metric not in metrics:
                raise InputError(
                    f"protocol {measure.protocol!r} gives {', '.join(metrics)}, and the set asks for {measure.metric!r}"
                )
            took = time.perf_counter() - began
            self.say(f"  {place.store}, {cell.measure}: {100 * metrics[measure.metric]:.2f} % ({took:.1f} s)")
            yield Figure(
                **vars(cell),
                key=self.keys[cell],
                metrics=metrics,
                facts=result.facts,
                run="" if trained is None else str(trained),
                training_seconds=round(seconds, 2),
                evaluation_seconds=round(took, 2),
            )

    def _train(self, job: Job) -> tuple[Path, float]:
        """The run of a job, trained to its end, and the seconds that its steps and minings took."""
        source, files = self.plan.source(job), dict[str, str]()
        if source is not None:
            self.say(f"  takes from {source}")
            files = self._files(self._train(source)[0])
        recipe = self.plan.recipe(job, files)
        content = open_store(self.plan.folder, job.store).fingerprint
        weights = recipe.network.weights
        made_of = [recipe.digest(), content, *([] if weights is None else [sha256_once(Path(weights))])]
        digest = hashlib.sha256(" ".join(made_of).encode()).hexdigest()
        path = self.runs / f"{Path(str(job.row.recipe)).stem}-{digest[:12]}"
        done = train(recipe, path, score, splits_of, device=self.device)
        seconds = sum(Run.open(path).seconds().values())
        said = f"trained, {done.trained} steps" if done.trained else "trained before"
        self.say(f"  {said} ({seconds:.1f} s in all): {path}")
        return path, seconds

    def _files(self, run: Path) -> dict[str, str]:
        """The policy and the last distribution of a finished run, kind to file, beside the run."""
        policy, distribution = save_policy_of(run, run.with_name(f"{run.name}.policy"))
        return {"policy": str(policy), "distribution": str(distribution)}

    def _write(self, table: Table) -> None:
        write_csv(table, self.target / CSV)
        write_markdown(table, self.target / MARKDOWN, PLOT)


def _command(name: str, plan: Plan, out: Path, gaps: list[CellId]) -> str:
    """The command that makes the missing cells."""
    rows = [row.name for row in plan.rows if any(cell.row == row.name for cell in gaps)]
    words = ["hardmine", "reproduce", name, "--data", str(plan.folder), "--out", str(out), "--scale", plan.scale]
    if plan.seeds != list(range(plan.settings.seeds)):
        words += ["--seed-list", ",".join(map(str, plan.seeds))]
    if len(rows) < len(plan.rows):
        words += ["--rows", ",".join(rows)]
    return shlex.join(words)
