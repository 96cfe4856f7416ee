"""The figures that a set has so far: one JSON file, replaced in one step after every run, so that a kill loses none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardmine.errors import StoreError
from hardmine.options import Options, check
from hardmine.reproduce.plan import CellId
from hardmine.store.files import write_atomic


class Figure(Options):
    """What a cell came to. key: of what was measured, see `Plan.key`. metrics: every figure of the protocol, rates in
    0..1. facts: what they were measured on. run: folder of the run, '' for a contender. training_seconds: of the run,
    its mining included; evaluation_seconds: of this cell, embedding included."""

    row: str
    train: str
    test: str
    measure: str
    seed: int
    key: str
    metrics: dict[str, float]
    facts: dict[str, Any]
    run: str
    training_seconds: float
    evaluation_seconds: float

    @property
    def cell(self) -> CellId:
        """The cell it belongs to."""
        return CellId(self.row, self.train, self.test, self.measure, self.seed)


@dataclass
class Ledger:
    """The figures of one set at one scale, by key; figures of other settings or data stay in the file."""

    file: Path
    figures: dict[tuple[CellId, str], Figure]

    @classmethod
    def read(cls, file: Path) -> Ledger:
        """The ledger in `file`, an empty one where there is none. Raises StoreError where it is damaged."""
        if not file.is_file():
            return cls(file, {})
        try:
            found = [check(Figure, each, str(file)) for each in json.loads(file.read_text(encoding="utf-8"))]
        except (ValueError, TypeError) as error:
            raise StoreError(f"{file} is damaged ({error}): delete it; the runs are kept and read again") from error
        return cls(file, {(figure.cell, figure.key): figure for figure in found})

    def get(self, cell: CellId, key: str) -> Figure | None:
        """The figure of a cell under a key, or None."""
        return self.figures.get((cell, key))

    def add(self, figures: Iterable[Figure]) -> None:
        """Keep figures, on the disk also. Raises DiskError."""
        self.figures |= {(figure.cell, figure.key): figure for figure in figures}
        ordered = [self.figures[place].model_dump(mode="json") for place in sorted(self.figures)]
        write_atomic(self.file, json.dumps(ordered, indent=1).encode())
