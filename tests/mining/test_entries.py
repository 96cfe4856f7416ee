"""Entries and their extra views against a plain listing."""

import numpy as np
import pytest
from mining_world import make_store

from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.entries import list_entries
from hardmine.pipeline.views import Views


def by_loops(store, split, per_class):
    chosen, offsets = [], [0]
    rows = store.rows(split)
    for c in range(store.num_classes):
        own = [row for row in rows if store.label[row] == c]
        entries = [(row, 0) for row in own]
        extra = []
        while own and len(entries) + len(extra) < per_class:
            extra.append((own[len(extra) % len(own)], 1 + len(extra) // len(own)))
        chosen += entries + sorted(extra, key=lambda each: (each[1], each[0]))
        offsets.append(len(chosen))
    return chosen, offsets


@pytest.mark.parametrize("per_class", [2, 4, 7])
def test_small_classes_are_filled_in_turn(tmp_path, per_class):
    store = make_store(tmp_path / "store", (3, 1, 9, 2, 5), split="by-class:0.6", limit=6)
    for split in store.split_names:
        entries = list_entries(store, split, Views(per_class=per_class))
        expected, offsets = by_loops(store, split, per_class)
        assert list(zip(entries.row.tolist(), entries.view.tolist())) == expected
        assert entries.offsets.tolist() == offsets
        assert (store.label[entries.row] == entries.label).all()
        assert entries.row.dtype == entries.offsets.dtype == np.int64
        assert entries.view.dtype == np.int16


def test_without_views_each_used_row_is_one_entry(tmp_path):
    store = make_store(tmp_path / "store", (3, 1, 4), limit=2)
    entries = list_entries(store, None, None)
    assert entries.row.tolist() == store.rows().tolist()
    assert not entries.view.any()
    assert len(entries) == 5


def test_splits_are_never_mixed_or_guessed(tmp_path):
    store = make_store(tmp_path / "store", split="by-class:0.5")
    with pytest.raises(InputError, match="name the one"):
        list_entries(store, None, None)
    with pytest.raises(UnknownNameError, match="train"):
        list_entries(store, "trian", None)
    train, val = (set(list_entries(store, name, Views(per_class=5)).row.tolist()) for name in ("train", "val"))
    assert not train & val


def test_more_views_than_a_number_can_count(tmp_path):
    with pytest.raises(InputError, match="32767"):
        list_entries(make_store(tmp_path / "store"), None, Views(per_class=40_000))
