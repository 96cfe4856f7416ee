"""`mine --repair`: the damaged files of a committed round, and no others, made again to the byte.

A file is made beside the round, compared with the size and CRC-32 recorded at the commit, and put in its place in one
step; what does not come out the same is refused. So a killed or failed repair leaves a round that is as damaged as
before or less, and never one that is wrong.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hardmine.errors import InputError, StoreError
from hardmine.mining.derive import derive
from hardmine.mining.derived import recorded_options
from hardmine.mining.embed import Progress, constant_patches
from hardmine.mining.entries import Entries, list_entries
from hardmine.mining.passes import Manner, run_pass
from hardmine.mining.reuse import find_earlier
from hardmine.pipeline.views import Views
from hardmine.store.files import disk_errors, write_lock
from hardmine.store.fingerprint import differences
from hardmine.store.patches import PatchStore
from hardmine.store.round_writer import ENTRY_ARRAYS, RoundWriter
from hardmine.store.rounds import DERIVED, Damage, MiningStore, Round


@dataclass
class RepairResult:
    """round: the round, whole again. repaired: its files that were made again and what was wrong with each. embedded:
    entries that went through the network."""

    round: Round
    repaired: list[Damage]
    embedded: int
    messages: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        files = [f"{each.file} {each.problem}" for each in self.repaired]
        return {
            "round": self.round.number,
            "repaired": files,
            "embedded": self.embedded,
            "messages": self.messages or ([] if files else ["every file is as it was committed"]),
        }


def repair(
    store: PatchStore | None,
    mining: Path,
    which: int | str = "latest",
    *,
    network: Any | None = None,
    device: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> RepairResult:
    """Make every file of a committed round again that is missing or has another size or CRC-32 than recorded.

    store: needed for entries and descriptors. network: the one that the round was made with, needed for descriptors.
    device: where to embed; must be of the kind that the round was embedded on.

    Raises InputError naming the store or network that is needed and not given, or what differs in the one given;
    StoreError where files come out other than they were; LockedError while another process writes.
    """
    target = MiningStore(mining)
    target.open(which, check=False)
    with write_lock(target.path, "mining store"), disk_errors(f"mining store {target.path}"):
        opened = target.open(which, check=False)
        damaged = list(opened.damaged(checksums=True))
        if not damaged:
            return RepairResult(opened, [], 0)
        work = _Repair(opened, damaged, store, network)
        try:
            work.entries()
            embedded = work.shards(target, device, workers, scheduler, progress)
            work.derived()
        finally:
            shutil.rmtree(work.scratch.folder, ignore_errors=True)
    whole = MiningStore(mining).open(opened.number)
    return RepairResult(whole, damaged, embedded, work.messages)


class _Repair:
    def __init__(self, opened: Round, damaged: Sequence[Damage], store: PatchStore | None, network: Any | None):
        self.round, self.damaged, self.store, self.network = opened, damaged, store, network
        self.name = f"round {opened.number} of {opened.folder.parent.parent}"
        self.messages: list[str] = []
        self._check_needs()
        self.writer, self.scratch = RoundWriter.extend(opened), RoundWriter.beside(opened)

    def entries(self) -> None:
        """The arrays that say which rows and views were embedded."""
        if self._of(*ENTRY_ARRAYS):
            found = self._listed()
            for name, values in zip(ENTRY_ARRAYS, (found.row, found.view, found.offsets)):
                self.scratch.put(name, values)
            self._adopt(*ENTRY_ARRAYS)

    def shards(
        self, target: MiningStore, device: str | None, workers: int, scheduler: str | None, progress: Progress | None
    ) -> int:
        """Descriptors and constant flags; returns the number of entries embedded."""
        embedded, rows = 0, self.round.attrs["how"]["shard_rows"]
        lost = {rows * number for number in self._numbers("descriptors")}
        if lost:
            found, store = self._listed(), self._store()
            how = self.round.attrs["how"]
            manner = Manner(how["batch"], device or how["device"], self.round.key["dtype"], how.get("compile", False))
            earlier = None
            if "copied_from" in how:
                earlier = find_earlier(target, self.round.key, store, found, how, self.messages)
                if earlier is not None and earlier.round.attrs["key_hash"] != how["copied_from"]:
                    earlier = None  # the one it was copied from is gone: embedded like the rest
            hands: dict[str, Any] = {"workers": workers, "scheduler": scheduler, "progress": progress}
            embedded = run_pass(
                store, found, self.scratch, self.network, self._views(), manner, earlier=earlier, only=lost, **hands
            )
        for number in set(self._numbers("entry_constant")) - {start // rows for start in lost}:
            part = slice(number * rows, (number + 1) * rows)
            constant = constant_patches(self._store(), self._listed().row[part])
            self.scratch.put_constant(number * rows, constant)
        self._adopt("descriptors", "entry_constant")
        return embedded

    def derived(self) -> None:
        """Pair distances, lists, centroids and the index, from the descriptors."""
        source = Round(self.round.folder, self.round.attrs)  # nothing read before the repair is used
        for what, record in self.round.attrs["derived"].items():
            if self._of(*DERIVED[what]):
                arrays, _, _ = derive(source, what, **recorded_options(record, what))
                for name, values in arrays.items():
                    self.scratch.put(name, values)
                self._adopt(*DERIVED[what])

    def _of(self, *arrays: str) -> list[Damage]:
        return [each for each in self.damaged if each.array in arrays]

    def _numbers(self, array: str) -> list[int]:
        """Shards of an array that are damaged."""
        return [int(each.file.split("/")[2]) for each in self._of(array) if "/c/" in each.file]

    def _adopt(self, *arrays: str) -> None:
        for each in self._of(*arrays):
            if not self.writer.adopt(self.scratch, each.file):
                raise StoreError(
                    f"{self.name}: {each.file} {each.problem}, and comes out other than it was committed (another "
                    "version of torch, zarr or faiss, or another kind of processor). It was left as it is. Delete that "
                    f"round (the folder {self.round.folder}) and mine again."
                )

    def _listed(self) -> Entries:
        return list_entries(self._store(), self.round.split, self._views())

    def _views(self) -> Views | None:
        views = self.round.key["views"]
        return None if views is None else Views(**views)

    def _store(self) -> PatchStore:
        assert self.store is not None  # see _check_needs
        return self.store

    def _check_needs(self) -> None:
        """Raises InputError where store or network are needed, and missing or not those of the round."""
        key, how = self.round.key, self.round.attrs["how"]
        if not self._of(*ENTRY_ARRAYS, "entry_constant", "descriptors"):
            return
        first = self.damaged[0].file
        if self.store is None or self.store.fingerprint != key["patches"]:
            given = "none was given"
            if self.store is not None:
                given = f"{self.store.path} has {self.store.fingerprint[:12]}..."
            raise InputError(
                f"{self.name}: to make {first} again, the patch store with the fingerprint {key['patches'][:12]}... is "
                f"needed, split {key['split']!r}; {given}"
            )
        if not self._numbers("descriptors"):
            return
        wanted = key["network"]
        needed = (
            f"{self.name}: to make descriptors again, the network {wanted['network']} with the weights "
            f"{wanted['weights'][:12]}... is needed"
        )
        if self.network is None:
            raise InputError(f"{needed}: give it as --checkpoint or --network with --weights")
        if self.network.identity() != wanted:
            parts = "; ".join(differences(wanted, self.network.identity()))
            raise InputError(f"{needed}; the one given differs in {parts}")
        if how["device"] == "cuda" and not torch.cuda.is_available():
            raise InputError(f"{needed}, on a CUDA device, where the round was embedded: other devices round otherwise")
