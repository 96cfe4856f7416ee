"""What the three HPatches tasks share: their options, the sequences they measure, and the descriptors of a strip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hardmine.errors import InputError
from hardmine.options import Options as ProtocolOptions
from hardmine.pipeline.readers.hpatches import KINDS
from hardmine.pipeline.readers.hpatches_names import SEQUENCES
from hardmine.protocols.base import Describe
from hardmine.protocols.hpatches.distances import Distance, unmasked
from hardmine.protocols.hpatches.splits import TaskName, official_split
from hardmine.protocols.hpatches.strips import Strips, strips_of
from hardmine.protocols.hpatches.whitening import apply, fit
from hardmine.store.distances import as_descriptors
from hardmine.store.patches import PatchStore

_LISTED = 20  # missing names to print


class HPatchesOptions(ProtocolOptions):
    """Options of every HPatches task."""

    task: TaskName = Field(
        "all", description="the benchmark's split: a, b, c, illum, view, full; all: every sequence that is there"
    )
    tasks: Path | None = Field(None, description="the benchmark's folder of task files: splits.json, verif_*, retr_*")
    distance: Distance = Field("l2", description="masked_l1: descriptors are values, then as many masks")
    normalise: Literal["none", "pca-power"] = Field(
        "none", description="pca-power: whitening fitted on the split's training sequences, then a power law"
    )


@dataclass(frozen=True)
class Selected:
    """The sequences that a task measures.

    names: in the split's order. missing: sequences of the split that cannot be measured, with the reason. official:
    whether `names` is a whole official split in its order. partial: whether they are a part of one.
    """

    name: str
    names: tuple[str, ...]
    train: tuple[str, ...]
    missing: dict[str, str]
    official: bool
    partial: bool
    strips: Strips

    @property
    def lengths(self) -> dict[str, int]:
        """Patches in each strip, by name, in the order of `names`."""
        return {name: self.strips.rows[name].shape[1] for name in self.names}

    def facts(self) -> dict[str, Any]:
        """What the figures are of, for people."""
        listed = [f"{name} ({why})" if why else name for name, why in self.missing.items()]
        more = [f"and {len(listed) - _LISTED} more"] if len(listed) > _LISTED else []
        return {
            "task_split": self.name,
            "sequences": len(self.names),
            "patches_per_strip": sum(self.lengths.values()),
            "generated": self.name == "all",
            "partial": self.partial,
            "missing_sequences": len(listed),
            "missing": ", ".join(listed[:_LISTED] + more),
        }


def select(store: PatchStore, split: str | None, options: HPatchesOptions) -> Selected:
    """The sequences of a store's split that the options ask for. Raises InputError where there is none of them."""
    strips = strips_of(store, split)
    if options.task == "all" and set(strips.rows) != set(SEQUENCES):
        of_release = bool(strips.rows) and set(strips.rows) <= set(SEQUENCES)
        absent = [name for name in SEQUENCES if name not in strips.rows] if of_release else sorted(strips.broken)
        missing = {name: strips.broken.get(name, "") for name in absent}
        names: tuple[str, ...] = tuple(strips.rows)
        train: tuple[str, ...] = ()
        chosen = Selected("all", names, train, missing, False, of_release or bool(missing), strips)
    else:
        task = official_split("full" if options.task == "all" else options.task, options.tasks)
        names = tuple(name for name in task.test if name in strips.rows)
        missing = {name: strips.broken.get(name, "") for name in task.test if name not in strips.rows}
        chosen = Selected(task.name, names, task.train, missing, not missing, bool(missing), strips)
    if not chosen.names:
        raise InputError(
            f"none of the sequences of the HPatches split {chosen.name!r} is whole in {store.path} "
            f"(split {store.resolve_split(split)!r}); with task=all every sequence that is there is measured"
        )
    return chosen


class DescribedStrips:
    """The descriptors of strips, read when asked for and not kept: float32 (N, D)."""

    def __init__(self, selected: Selected, describe: Describe, options: HPatchesOptions) -> None:
        self.selected, self.distance = selected, options.distance
        self._rows, self._describe = selected.strips.rows, describe
        self._whitening: np.ndarray | None = None
        self.facts: dict[str, Any] = {"distance": options.distance, "normalise": options.normalise}
        if options.normalise == "pca-power":
            self._whitening = self._fitted()

    def strip(self, name: str, kind: int) -> np.ndarray:
        """Of strip KINDS[kind] of a sequence, normalised and unmasked as the options say. Raises InputError,
        NumericalError."""
        values = self._read(name, kind)
        if self._whitening is not None:
            values = apply(values, self._whitening)
        return unmasked(values, self.distance)

    def strips(self, kinds: Sequence[int]) -> np.ndarray:
        """The strips `kinds` of all selected sequences: (len(kinds), sum of the sequences' lengths, D)."""
        lengths = self.selected.lengths
        end = np.cumsum(list(lengths.values()))
        out = np.zeros((0, 0, 0), np.float32)
        for name, stop in zip(lengths, end.tolist(), strict=True):
            for place, kind in enumerate(kinds):
                values = self.strip(name, kind)
                if not out.size:
                    out = np.empty((len(kinds), int(end[-1]), values.shape[1]), np.float32)
                out[place, stop - lengths[name] : stop] = values
        return out

    def _read(self, name: str, kind: int) -> np.ndarray:
        rows = self._rows[name][kind]
        values = as_descriptors(self._describe(rows), rows)
        if len(values) != len(rows):
            raise InputError(f"{len(values)} descriptors came back for the {len(rows)} patches of {name}/{KINDS[kind]}")
        return values

    def _fitted(self) -> np.ndarray:
        train = self.selected.train
        if not train:
            raise InputError(
                f"normalise=pca-power is fitted on training sequences, and the split {self.selected.name!r} has none: "
                "choose task=a, b or c"
            )
        absent = [name for name in train if name not in self._rows]
        if len(absent) == len(train):
            raise InputError(
                f"normalise=pca-power is fitted on the {len(train)} training sequences of split "
                f"{self.selected.name!r}, and none of them is among what is evaluated: ingest without the option "
                "`official`, so that training and test sequences are in one split of the store"
            )
        self.facts["fitted_on"] = f"{len(train) - len(absent)} of {len(train)} training sequences"
        return fit(self._read(name, 0) for name in train if name in self._rows)


def mean_of(cells: Mapping[str, float], *words: str, without: str = "") -> float:
    """The mean of the cells whose dash-separated name holds all of `words` and not `without`."""
    chosen = [v for name, v in cells.items() if set(words) <= set(name.split("-")) and without not in name.split("-")]
    return float(np.mean(chosen))
