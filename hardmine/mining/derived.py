"""What a round has been given and what is asked of it: which derivations are missing, and which may be replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hardmine.errors import InputError, StoreError, UnknownNameError
from hardmine.mining.derive import derive as derive_one
from hardmine.store.round_writer import RoundWriter
from hardmine.store.rounds import DERIVED


@dataclass(frozen=True)
class Wanted:
    """What is to be derived. what: any of 'pairs', 'knn', 'centroids', 'index'; the other options as in `rederive`.

    Raises UnknownNameError for another name, InputError for fewer neighbours than one."""

    what: tuple[str, ...]
    neighbours: int = 16
    index: str = "Flat"
    knn_index: str | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        for what in self.what:
            if what not in DERIVED:
                raise UnknownNameError("derivation", what, DERIVED)
        if self.neighbours < 1:
            raise InputError(f"neighbours must be at least 1, not {self.neighbours}")

    def is_met(self, attrs: dict[str, Any], what: str) -> bool:
        """Whether a round's record of a derivation answers what is asked."""
        record = attrs["derived"].get(what)
        if record is None:
            return False
        if what == "index":
            return self.index in ("Flat", record["asked"])
        if what == "knn" and not self._same_search(record):
            return False
        return what == "pairs" or record["neighbours"] >= self.neighbours

    def all_met(self, attrs: dict[str, Any]) -> bool:
        """Whether nothing is to be derived."""
        return all(self.is_met(attrs, what) for what in self.what)

    def check_replacing(self, record: dict[str, Any] | None, what: str, where: str) -> None:
        """Raises StoreError where a record would have to give way to another kind of lists unasked."""
        if what == "knn" and record is not None and not self.replace and not self._same_search(record):
            raise StoreError(
                f"{where} has lists of {record['neighbours']} neighbours, found by {_search(record)}; those asked for "
                f"({self.neighbours}, by {self.knn_index}) would take their place: give --replace, or use what is there"
            )

    def options(self, record: dict[str, Any] | None) -> dict[str, Any]:
        """Options of the derivation, with those that were left open taken from what is there."""
        knn_index = self.knn_index
        if knn_index is None and record is not None:
            knn_index = record.get("knn_asked")
        return {"neighbours": self.neighbours, "index": self.index, "knn_index": knn_index}

    def _same_search(self, record: dict[str, Any]) -> bool:
        """Whether lists come from the search asked for, or a better one."""
        return self.knn_index is None or _search(record) in ("Flat", self.knn_index)


def derive_missing(writer: RoundWriter, wanted: Wanted, device: torch.device, messages: list[str]) -> list[str]:
    """Derive what is missing, damaged or too short; returns what was derived.

    Raises StoreError, before anything is touched, where `wanted` does not allow to replace what is there."""
    where, there = f"round {writer.number} of {writer.folder.parent.parent}", writer.attrs["derived"]
    todo = [what for what in DERIVED if what in wanted.what]
    todo = [what for what in todo if not (wanted.is_met(writer.attrs, what) and writer.has_sound(what))]
    for what in todo:
        wanted.check_replacing(there.get(what), what, where)
    source = writer.round()
    for what in todo:
        record = there.get(what)
        if record is not None:
            messages.append(f"round {writer.number}: {what} was derived with other options before and is replaced")
        arrays, about, said = derive_one(source, what, device=device, **wanted.options(record))
        writer.record(what, arrays, about)
        messages += said
    return todo


def recorded_options(record: dict[str, Any], what: str) -> dict[str, Any]:
    """The options of `derive` that made this record."""
    if what == "pairs":
        return {}
    options: dict[str, Any] = {"neighbours": record["neighbours"]}
    if what == "index":
        options["index"] = record["asked"]
    if what == "knn":
        options["knn_index"] = record.get("knn_asked")
    return options


def _search(record: dict[str, Any]) -> str:
    return record.get("knn_index", "Flat")
