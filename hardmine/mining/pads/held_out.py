"""Which items of the training classes are held out for the reward, drawn anew during a run.

The released program of PADS has such a re-draw as an option. Here it keeps the number of held-out items of each class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardmine.errors import InputError
from hardmine.mining.entries import Entries

_STREAM = 7  # of random numbers, apart from the samplers' own


@dataclass(frozen=True)
class HeldOut:
    """The items of two splits, and how many of each class are held out.

    row: int64 (M,), in class order, inside a class ascending. label: int64 (M,). first: bool (M,), held out at first.
    classes: number of labels.
    """

    row: np.ndarray
    label: np.ndarray
    first: np.ndarray
    classes: int

    @classmethod
    def of(cls, entries: Entries, rows: np.ndarray, labels: np.ndarray) -> HeldOut:
        """entries: trained on at first, without views. rows, labels: held out at first, int64 (H,). Raises InputError
        where a class is held out as a whole."""
        row = np.concatenate([entries.row, rows])
        label = np.concatenate([entries.label, labels])
        first = np.repeat([False, True], [len(entries), len(rows)])
        whole = np.setdiff1d(labels, entries.label)
        if len(whole):
            raise InputError(
                f"class {whole[0]} and {len(whole) - 1} more are held out as a whole: policy.redraw_every draws items "
                "of every class; ingest with --split by-item:0.85, or leave it out"
            )
        order = np.lexsort((row, label))
        return cls(row[order], label[order], first[order], len(entries.offsets) - 1)

    def draw(self, seed: int, number: int) -> tuple[Entries, np.ndarray, np.ndarray]:
        """(entries to train on, held-out rows ascending, their labels) of draw `number`, a function of (seed, number):
        0 is the splits as they are; from 1 on as many of each class as then, drawn evenly."""
        held = self.first
        if number > 0:
            rng = np.random.Generator(np.random.Philox(key=[seed, number], counter=[0, 0, 0, _STREAM]))
            chance = np.lexsort((rng.random(len(self.row)), self.label))  # the items of each class in a random order
            start = np.searchsorted(self.label, self.label)
            wanted = np.bincount(self.label[self.first], minlength=self.classes)
            held = np.zeros(len(self.row), bool)
            held[chance] = np.arange(len(self.row)) - start < wanted[self.label]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(self.label[~held], minlength=self.classes))])
        trained = self.row[~held]
        entries = Entries(trained, np.zeros(len(trained), np.int16), offsets.astype(np.int64))
        rows, labels = self.row[held], self.label[held]
        order = np.argsort(rows)
        return entries, rows[order], labels[order]
