"""Negatives from neighbour lists, nearest first; lists that are too short are searched again, four times as long."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from hardmine.mining.candidates import Candidates, first_of_each_class, uniforms
from hardmine.mining.negative_rules import RankedRule
from hardmine.store.search import nearest

START = 64  # length of the first list where the round has none
GROWTH = 4
LISTED_AT_ONCE = 1 << 22  # list places held at once


@dataclass
class Chosen:
    """lines: int64 (n, k), -1 padded. fitting: int64 (n,), candidates that fit the rule, left out or not. remaining:
    int64 (n,), those of them that are not left out; both exact where fewer than k. left_out: candidates by reason.
    searched_again: anchors."""

    lines: np.ndarray
    fitting: np.ndarray
    remaining: np.ndarray
    left_out: dict[str, int] = field(default_factory=dict)
    searched_again: int = 0


def take_nearest(
    world: Candidates,
    lines: np.ndarray,
    positive: np.ndarray,
    k: int,
    rule: RankedRule,
    class_balanced: bool,
    seed: int,
    step: int,
) -> Chosen:
    """For each anchor (a line) the negatives that a ranked rule takes. positive: float32 (n,), d_ap."""
    chosen = Chosen(np.full((len(lines), k), -1, np.int64), *np.zeros((2, len(lines)), np.int64))
    counts: Counter[str] = Counter({"near duplicates": 0, "overlapping classes": 0, "excluded": 0})
    stored = "knn" in world.source.derived
    width = world.source.knn_other()[0].shape[1] if stored else min(max(4 * k, START), max(1, len(world.rows)))
    open_, again = np.arange(len(lines)), np.zeros(len(lines), bool)
    while len(open_):
        still_open = []
        block = max(1, LISTED_AT_ONCE // width)
        for start in range(0, len(open_), block):
            some = open_[start : start + block]
            other, distance = _stored(world, lines[some]) if stored else _searched(world, lines[some], width)
            done = _choose(world, lines, positive, some, other, distance, k, rule, class_balanced, seed, step, chosen)
            for name, mask in world.left_out(lines[some], other, distance).items():
                counts[name] += int(mask[done].sum())
            still_open.append(some[~done])
        open_ = np.concatenate(still_open)
        again[open_] = True
        width, stored = min(GROWTH * width, len(world.rows)), False
    chosen.left_out, chosen.searched_again = dict(counts), int(again.sum())
    return chosen


def _stored(world: Candidates, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows, distance = world.source.knn_other()
    found = rows[lines]
    other = np.full(found.shape, -1, np.int64)
    other[found >= 0] = world.lines(found[found >= 0], "stored neighbours")
    return other, np.where(other >= 0, distance[lines], np.inf)


def _searched(world: Candidates, lines: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    number = np.arange(len(world.rows))
    found = nearest(
        world.x,
        number,
        width,
        queries=world.x[lines],
        query_rows=lines,
        labels=world.labels,
        query_labels=world.labels[lines],
    )
    return found.rows, np.where(found.rows >= 0, found.distance, np.inf)


def _choose(
    world: Candidates,
    lines: np.ndarray,
    positive: np.ndarray,
    some: np.ndarray,
    other: np.ndarray,
    distance: np.ndarray,
    k: int,
    rule: RankedRule,
    class_balanced: bool,
    seed: int,
    step: int,
    chosen: Chosen,
) -> np.ndarray:
    """Choose for the anchors `some` from their lists; bool, which of them are settled: a longer list would change
    nothing. The others keep what `chosen` holds."""
    there = other >= 0
    complete = there.sum(1) >= world.others(lines[some])
    allowed = there & ~np.any(list(world.left_out(lines[some], other, distance).values()), axis=0)
    above = distance >= rule.lower(positive[some])[:, None]
    fits, remains = there & above & _within(there, rule), allowed & above & _within(allowed, rule)
    last = rule.ranks()[1]
    passed = np.zeros(len(some), bool) if last is None else allowed.sum(1) > last
    done = complete | passed
    for i in range(len(some)):
        columns = np.flatnonzero(remains[i])
        if rule.shuffles() and done[i]:
            columns = columns[np.argsort(uniforms(seed, step, int(world.rows[lines[some[i]]]), len(columns)))]
        if class_balanced:
            columns = columns[first_of_each_class(world.labels[other[i, columns]])]
        done[i] |= len(columns) >= k and not rule.shuffles()
        if done[i]:
            chosen.lines[some[i], : len(columns[:k])] = other[i, columns[:k]]
    chosen.fitting[some], chosen.remaining[some] = fits.sum(1), remains.sum(1)
    return done


def _within(mask: np.ndarray, rule: RankedRule) -> np.ndarray:
    """bool, as mask: whether a candidate's rank among those of `mask` is one that the rule takes."""
    first, last = rule.ranks()
    rank = np.cumsum(mask, axis=1) - 1
    return (rank >= first) & (rank <= (rank.shape[1] if last is None else last))
