"""How stale a round is, against a plain loop."""

import numpy as np
import pytest
from hand_round import HandRound, unit

from hardmine.errors import InputError
from hardmine.mining.staleness import staleness

SIZES = [3] * 20


def embed_with(x):
    return lambda rows, views: x[rows - 100]


def slow(source, x, k, wider):
    """Over all items as anchors."""
    kept = []
    n = len(source.x)
    for a in range(n):
        others = [o for o in range(n) if source.entry_label[o] != source.entry_label[a]]
        old = sorted(others, key=lambda o: (np.linalg.norm(source.x[o] - source.x[a]), o))[: k * wider]
        new = sorted(old, key=lambda o: (np.linalg.norm(x[o] - x[a]), o))[:k]
        kept.append(len(set(old[:k]) & set(new)) / k)
    return np.mean(kept)


def test_it_equals_a_plain_loop():
    x = unit(60)
    source = HandRound(SIZES, x)
    moved = x + 0.3 * unit(60, seed=1)
    found = staleness(source, embed_with(moved), 70, negatives=4, wider=3)
    assert found.still_hard == pytest.approx(slow(source, moved, 4, 3))
    assert (found.age, found.anchors) == (70, 60)
    assert found.scalars() == {"round_age": 70.0, "round_still_hard": found.still_hard}


def test_unchanged_weights_keep_all_and_foreign_ones_what_chance_keeps():
    x = unit(600, 16)
    source = HandRound([3] * 200, x)
    assert staleness(source, embed_with(x), 0).still_hard == 1.0
    assert staleness(source, embed_with(unit(600, 16, seed=5)), 9).still_hard == pytest.approx(1 / 4, abs=0.04)


def test_only_the_sample_is_embedded_and_each_item_once():
    x, asked = unit(600, 16), []

    def embed(rows, views):
        asked.append(rows)
        return x[rows - 100]

    source = HandRound([3] * 200, x)
    assert staleness(source, embed, 1, anchors=5, negatives=2, wider=2).anchors == 5
    assert len(asked) == 1
    assert len(asked[0]) == len(np.unique(asked[0])) <= 5 * 5


def test_too_small_a_set_has_an_age_alone():
    source = HandRound([2, 2], unit(4))
    assert staleness(source, embed_with(unit(4)), 3).scalars() == {"round_age": 3.0}
    with pytest.raises(InputError, match="wider 1"):
        staleness(source, embed_with(unit(4)), 3, wider=1)
