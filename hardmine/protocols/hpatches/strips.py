"""The strips of a patch store: which row is patch k of strip e3 of sequence v_wall."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from hardmine.errors import InputError
from hardmine.pipeline.readers.hpatches import KINDS
from hardmine.store.patches import PatchStore

NOISES = {"easy": 1, "hard": 6, "tough": 11}  # the number in KINDS of each noise's first strip, of five


@dataclass(frozen=True)
class Strips:
    """rows: name of a whole sequence to int64 (16, N), the row of each patch of each strip, in the order of KINDS.
    broken: name of a sequence that is not whole to what is wrong with it."""

    rows: dict[str, np.ndarray]
    broken: dict[str, str]

    @property
    def lengths(self) -> dict[str, int]:
        """Patches in each strip of a sequence."""
        return {name: table.shape[1] for name, table in self.rows.items()}


def strips_of(store: PatchStore, split: str | None) -> Strips:
    """The sequences of a split of a store, byte-sorted by name.

    A sequence is whole if all of its patches are used and in the split. Raises InputError where the store was not
    ingested as `hpatches` or `hpatches-sequences`, and as `PatchStore.resolve_split` does.
    """
    number, index, kind = (store.column(name) for name in ("sequence", "index", "kind"))
    if number is None or index is None or kind is None:
        raise InputError(
            f"{store.path} was ingested as {store.manifest.kind!r}: the HPatches tasks need a store of kind 'hpatches' "
            "(the release of patches) or 'hpatches-sequences' (the release of image sequences)"
        )
    usable = np.zeros(len(store), bool)
    usable[store.rows(split)] = True
    rows, broken = {}, {}
    order = np.argsort(number, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        if not len(members):
            continue
        name = os.fsdecode(bytes(store.raw_label[members[0]]).rpartition(b":")[0])
        good = members[usable[members]]
        if not len(good):
            continue  # of another split
        table = np.full((len(KINDS), int(index[members].max()) + 1), -1, np.int64)
        table[kind[good], index[good]] = good
        lost = np.count_nonzero(table < 0, axis=1)
        if lost.any():
            strips = ", ".join(np.array(KINDS)[lost > 0])
            broken[name] = f"{int(lost.sum())} of {table.size} patches not used or rejected: {strips}"
        else:
            rows[name] = table
    return Strips(dict(sorted(rows.items())), broken)
