"""Entries: the (row, view) pairs that a mining pass embeds and that a batch plan names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardmine.errors import InputError
from hardmine.pipeline.views import Views
from hardmine.store.patches import PatchStore

MOST_VIEWS = np.iinfo(np.int16).max


@dataclass(frozen=True)
class Entries:
    """M entries in class order: class c owns `offsets[c]:offsets[c + 1]`, an empty range where it has no row in the
    split.

    row: int64 (M,). view: int16 (M,), 0 is the item itself. offsets: int64 (C + 1,). Inside a class the items come
    first, by row, then the extra views, by (view, row).
    """

    row: np.ndarray
    view: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    @property
    def label(self) -> np.ndarray:
        """int64 (M,): the class of each entry."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def list_entries(store: PatchStore, split: str | None, views: Views | None) -> Entries:
    """The entries of the used rows of one split. With `views`, a class of k < per_class rows is extended by per_class
    - k further views of its rows, dealt in turn: view 1 of each row in ascending order, then view 2, and so on.

    Raises InputError where the split holds no used row or a class would need more than 32,767 views of one row.
    """
    name = store.resolve_split(split)
    rows = store.rows(name)
    if not len(rows):
        raise InputError(f"split {name!r} of {store.path} has no used rows: there is nothing to mine")
    label = store.label[rows]
    size = np.bincount(label, minlength=store.num_classes)
    view = np.zeros(len(rows), np.int64)
    if views is not None:
        extra_rows, extra_views, extra_label = _extra(rows, label, size, views.per_class)
        rows, view = np.concatenate([rows, extra_rows]), np.concatenate([view, extra_views])
        label = np.concatenate([label, extra_label])
    order = np.lexsort((rows, view, label))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(label, minlength=store.num_classes))]).astype(np.int64)
    return Entries(rows[order].astype(np.int64), view[order].astype(np.int16), offsets)


def _extra(
    rows: np.ndarray, label: np.ndarray, size: np.ndarray, per_class: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, views (from 1) and labels of the extra entries: number j of a class of k rows is view 1 + j // k of its row
    j % k."""
    smallest = int(size[size > 0].min())
    if (per_class - smallest + smallest - 1) // smallest > MOST_VIEWS:
        raise InputError(
            f"{per_class} entries per class is more than {MOST_VIEWS} views of each of its {smallest} row(s)"
        )
    by_class = rows[np.lexsort((rows, label))]
    start = np.concatenate([[0], np.cumsum(size)[:-1]])
    missing = np.where(size > 0, np.maximum(0, per_class - size), 0)
    owner = np.repeat(np.arange(len(size)), missing)
    j = np.arange(len(owner)) - np.repeat(np.cumsum(missing) - missing, missing)
    return by_class[start[owner] + j % size[owner]], 1 + j // size[owner], owner
