"""What `evaluate` hands to a protocol where descriptors come from committed rounds: descriptors by row, and lists."""

from __future__ import annotations

import numpy as np

from hardmine.errors import StoreError
from hardmine.store.rounds import Round


class Described:
    """Descriptors of rows, read from the items of one or several committed rounds, each of another split: a `Describe`
    that knows of stored neighbour lists."""

    def __init__(self, *rounds: Round):
        self.rounds = rounds
        self._rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """float32 (n, D) for int64 (n,) rows. Raises StoreError where no round has a row."""
        out = np.empty((len(rows), self.rounds[0].descriptors().shape[1]), np.float32)
        left = np.ones(len(rows), bool)
        for used in self.rounds:
            known, entry = self._items(used)
            place = np.minimum(np.searchsorted(known, rows), len(known) - 1)
            here = left & (known[place] == rows)
            out[here] = used.descriptors()[entry[place[here]]]
            left &= ~here
        if left.any():
            which = " and ".join(str(used.number) for used in self.rounds)
            raise StoreError(f"round {which} has no descriptor of {left.sum()} rows, the first {rows[left][0]}")
        return out

    def lists(self, rows: np.ndarray) -> tuple[np.ndarray | None, str]:
        """The nearest of each of `rows` among them, as a round has them: int64 (n, K) rows, -1 padded; and which round,
        or None and why there are none.

        rows: int64 (n,), ascending. Lists are taken where they are exact and over exactly these rows."""
        if len(self.rounds) != 1:
            return None, f"{len(self.rounds)} rounds have no lists across them"
        used = self.rounds[0]
        if "knn" not in used.derived:
            return None, f"round {used.number} has no lists"
        known, entry = self._items(used)
        searched_by = used.attrs["derived"]["knn"].get("knn_index", "Flat")
        if searched_by != "Flat":
            return None, f"the lists of round {used.number} are not exact ({searched_by})"
        if not np.array_equal(known, rows):
            return None, f"round {used.number} is over other rows"
        return used.knn()[0][np.searchsorted(used.items, entry)], f"the lists of round {used.number}"

    def _items(self, used: Round) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a round's items, ascending, and the entry of each."""
        if used.number not in self._rows:
            entry = used.items[np.argsort(used.entry_row[used.items], kind="stable")]
            self._rows[used.number] = used.entry_row[entry], entry
        return self._rows[used.number]
