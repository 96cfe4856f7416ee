"""Held-out items drawn anew: as many of each class, even, a function of seed and number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from hardmine.errors import InputError
from hardmine.mining.entries import Entries
from hardmine.mining.pads.held_out import HeldOut


def world(sizes, seed=0):
    """sizes: (items trained on, held out) of each class; rows are mixed. (entries, held-out rows, their labels)"""
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(len(sizes)), [a + b for a, b in sizes])
    row = rng.permutation(3 * len(label))[: len(label)]
    held = np.concatenate([np.arange(a + b) >= a for a, b in sizes]) if sizes else np.zeros(0, bool)
    trained, own = row[~held], label[~held]
    order = np.lexsort((trained, own))
    offsets = np.concatenate([[0], np.cumsum([a for a, _ in sizes])]).astype(np.int64)
    entries = Entries(trained[order], np.zeros(len(trained), np.int16), offsets)
    order = np.argsort(row[held])
    return entries, row[held][order], label[held][order]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=6),
    seed=st.integers(0, 9),
    number=st.integers(0, 4),
)
def test_as_many_of_each_class_and_every_item_once(sizes, seed, number):
    entries, rows, labels = world(sizes, seed)
    items = HeldOut.of(entries, rows, labels)
    drawn, held, held_labels = items.draw(seed, number)
    assert np.array_equal(drawn.offsets, entries.offsets)
    assert np.array_equal(np.bincount(held_labels, minlength=len(sizes)), [b for _, b in sizes])
    together = np.concatenate([drawn.row, held])
    assert np.array_equal(np.sort(together), np.sort(np.concatenate([entries.row, rows])))
    of = dict(zip(np.concatenate([entries.row, rows]), np.concatenate([entries.label, labels])))
    assert [of[row] for row in together] == [*drawn.label, *held_labels]
    assert (np.diff(held) > 0).all()
    again = items.draw(seed, number)
    assert np.array_equal(again[0].row, drawn.row)
    assert np.array_equal(again[1], held)
    if number == 0:
        assert np.array_equal(drawn.row, entries.row)
        assert np.array_equal(held, rows)


def test_every_item_of_a_class_is_held_out_as_often():
    entries, rows, labels = world([(4, 2), (3, 0), (1, 1)])
    items = HeldOut.of(entries, rows, labels)
    counts = dict.fromkeys(items.row.tolist(), 0)
    for number in range(1, 1501):
        for row in items.draw(0, number)[1].tolist():
            counts[row] += 1
    for c, share in ((0, 1 / 3), (1, 0.0), (2, 1 / 2)):
        found = np.array([counts[row] for row in items.row[items.label == c].tolist()])
        assert share == 0 or chisquare(found).pvalue > 1e-4
        assert found.sum() == round(share * 1500 * len(found))
    differ = [items.draw(seed, 1)[1].tolist() for seed in range(8)]
    assert len({tuple(held) for held in differ}) > 1


def test_a_class_that_is_held_out_as_a_whole_is_said():
    entries, rows, labels = world([(4, 2), (3, 1)])
    with pytest.raises(InputError, match="class 2 and 0 more are held out as a whole"):
        HeldOut.of(entries, np.append(rows, 99), np.append(labels, 2))
