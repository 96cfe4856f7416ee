"""Hard negatives from the whole set: a round's neighbour lists and descriptors, a rule, and no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardmine.errors import InputError
from hardmine.mining.candidates import Candidates
from hardmine.mining.negative_draws import draw
from hardmine.mining.negative_lists import Chosen, take_nearest
from hardmine.mining.negative_rules import DrawnRule, RankedRule, Rule, rules
from hardmine.mining.overlap import Overlap
from hardmine.options import check
from hardmine.store.distances import as_tensor, listed_distances
from hardmine.store.rounds import Round

UNIT = 1e-3  # how far from 1 a length may be on the unit sphere
NEAR_DUPLICATE = 0.008  # HardNet's (specs 3.1)


@dataclass(frozen=True)
class Negatives:
    """Negatives of n anchors.

    rows: int64 (n, k), patch store rows, -1 where there are no more. distance: float32 (n, k), NaN beside -1. positive:
    float32 (n,), d_ap, NaN where the rule compares with none or the anchor has none. table: what was skipped and why:

    - anchors, full (k negatives), short (fewer), none (not one; also among the short);
    - short_because: the short anchors by reason, each counted once, at the first that applies: "no positive", "too few
      items of other classes" (in the round), "rule" (fewer than k candidates fit it), "left out" (near duplicates,
      overlapping or excluded ones), "one of each class" (class_balanced);
    - left_out: candidates that were no negatives: "near duplicates" (all there are), "overlapping classes" and
      "excluded" (among the candidates looked at);
    - searched_again: anchors for which the stored lists were too short and more candidates were fetched;
    - messages: what a user should know, one line each.
    """

    rows: np.ndarray
    distance: np.ndarray
    positive: np.ndarray
    table: dict[str, Any]


def negatives(
    source: Round,
    rows: np.ndarray,
    k: int,
    rule: Rule | str | Mapping[str, Any] = "nearest",
    *,
    positive_rows: np.ndarray | None = None,
    class_balanced: bool = False,
    near_duplicate: float = NEAR_DUPLICATE,
    overlap: Overlap | None = None,
    exclude: np.ndarray | None = None,
    pool: int | None = None,
    seed: int = 0,
    step: int = 0,
) -> Negatives:
    """k negatives for each anchor, chosen by `rule` among the round's items of other classes.

    source: a round; its stored `knn_other` lists are used where they suffice, and the exact search where not. rows:
    int64 (n,), patch store rows of the anchors. rule: a rule, its name, or {"name": ..., option: ...}, see
    `negative_rules`. positive_rows: int64 (n,), the positives that d_ap is measured to (-1: none); where None it is the
    farthest entry of the anchor's class, turned views included. class_balanced: one negative of each class at most, and
    where a rule draws, weights divided by the number of candidates of their class. near_duplicate: items of another
    class closer than this are taken for the same thing under another label and left out (0: kept). overlap: classes
    that show the same spot are no negatives. exclude: int64 (m,) rows that are no negatives (an exclusion list). pool:
    drawing rules look at this many items, drawn evenly, the same for all anchors of the call (None: at all of them,
    N x D operations for each anchor). seed, step: the random numbers of an anchor are a function of (seed, step, row).

    Raises InputError for rows that are not in the round, options that do not fit, or a rule for unit descriptors where
    they are not; UnknownNameError for a rule or option of no such name.
    """
    rule = as_rule(rule)
    if k < 1 or near_duplicate < 0 or (pool is not None and pool < 1):
        raise InputError(
            f"k {k}, near_duplicate {near_duplicate}, pool {pool}: expected k and pool >= 1, distance >= 0"
        )
    if pool is not None and not isinstance(rule, DrawnRule):
        raise InputError("pool is for rules that draw; the others look at the nearest items only")
    world = Candidates(source, near_duplicate, overlap, exclude)
    lines = world.lines(rows, "anchors")
    if rule.needs_unit_norm:
        _check_unit_norm(world)
    positive = np.full(len(lines), np.nan, np.float32)
    if rule.needs_positive:
        positive = _hardest(source, world, lines) if positive_rows is None else _given(world, lines, positive_rows)
    usable = ~np.isnan(positive) if rule.needs_positive else np.ones(len(lines), bool)
    anchors, d_ap = lines[usable], positive[usable]
    if isinstance(rule, RankedRule):
        chosen = take_nearest(world, anchors, d_ap, k, rule, class_balanced, seed, step)
    elif isinstance(rule, DrawnRule):
        chosen = draw(world, anchors, d_ap, k, rule, class_balanced, seed, step, pool)
    else:
        raise InputError(f"{type(rule).__name__} is neither a RankedRule nor a DrawnRule")
    line = np.full((len(lines), k), -1, np.int64)
    line[usable] = chosen.lines
    found_rows = np.where(line >= 0, world.rows[line], -1)
    return Negatives(
        found_rows, _distances(world, lines, line), positive, _table(world, lines, usable, line, chosen, k)
    )


def as_rule(rule: Rule | str | Mapping[str, Any]) -> Rule:
    """A rule from itself, its name, or a mapping with `name` and its options. Raises UnknownNameError, InputError."""
    if isinstance(rule, Rule):
        return rule
    options = {"name": rule} if isinstance(rule, str) else dict(rule)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"a rule for negatives needs its name; known: {', '.join(rules.names())}")
    return check(rules.get(name), options, f"rule {name!r}")


def _check_unit_norm(world: Candidates) -> None:
    off = np.abs(np.sqrt(np.einsum("nd,nd->n", world.x, world.x)) - 1)
    if len(off) and off.max() > UNIT:
        raise InputError(
            f"this rule is for descriptors of length 1, but that of row {world.rows[off.argmax()]} has length off by "
            f"{off.max():.2g}: use a network with unit descriptors, or another rule"
        )


def _hardest(source: Round, world: Candidates, lines: np.ndarray) -> np.ndarray:
    """float32 (n,): distance to the farthest other entry of the anchor's class, NaN where there is none."""
    label, entry = world.labels[lines], world.items[lines]
    start, size = source.entry_offsets[label], np.diff(source.entry_offsets)[label]
    owner = np.repeat(np.arange(len(lines)), size)
    other = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size) + start[owner]
    keep = other != entry[owner]
    owner, other = owner[keep], other[keep]
    x = as_tensor(source.descriptors())
    distance = listed_distances(x, as_tensor(entry[owner]), x, as_tensor(other)).numpy()
    farthest = np.full(len(lines), -np.inf, np.float32)
    np.maximum.at(farthest, owner, distance)
    return np.where(np.isinf(farthest), np.float32(np.nan), farthest)


def _given(world: Candidates, lines: np.ndarray, positive_rows: np.ndarray) -> np.ndarray:
    positive_rows = np.asarray(positive_rows, np.int64)
    if positive_rows.shape != lines.shape:
        raise InputError(f"positive_rows has shape {positive_rows.shape} for {len(lines)} anchors")
    there = positive_rows >= 0
    partner = world.lines(positive_rows[there], "positives")
    wrong = world.labels[partner] != world.labels[lines[there]]
    if wrong.any():
        a, p = world.rows[lines[there][wrong][0]], world.rows[partner[wrong][0]]
        raise InputError(f"row {p} is no positive of row {a}: they are of different classes")
    line = np.full((len(lines), 1), -1, np.int64)
    line[there, 0] = partner
    return _distances(world, lines, line)[:, 0]


def _distances(world: Candidates, lines: np.ndarray, other: np.ndarray) -> np.ndarray:
    """float32 (n, k) from items to items, NaN beside -1."""
    there = other >= 0
    first = np.broadcast_to(lines[:, None], other.shape)[there]
    x = as_tensor(world.x)
    distance = np.full(other.shape, np.nan, np.float32)
    distance[there] = listed_distances(x, as_tensor(first), x, as_tensor(other[there])).numpy()
    return distance


def _table(
    world: Candidates, lines: np.ndarray, usable: np.ndarray, found: np.ndarray, chosen: Chosen, k: int
) -> dict[str, Any]:
    count, others = (found >= 0).sum(1), world.others(lines)
    fits, left = np.zeros(len(lines), np.int64), np.zeros(len(lines), np.int64)
    fits[usable], left[usable] = chosen.fitting, chosen.remaining
    short = count < k
    reasons = np.select(
        [~usable, others < k, fits < k, left < k],
        ["no positive", "too few items of other classes", "rule", "left out"],
        "one of each class",
    )[short]
    messages = []
    if len(lines) and k > others.max():
        messages.append(f"{k} negatives were asked for, but no anchor has more than {others.max()} items of others")
    if short.any():
        messages.append(f"{int(short.sum())} of {len(lines)} anchors have fewer than {k} negatives")
    return {
        "anchors": len(lines),
        "full": int((~short).sum()),
        "short": int(short.sum()),
        "none": int((count == 0).sum()),
        "short_because": {str(name): int(n) for name, n in zip(*np.unique(reasons, return_counts=True))},
        "left_out": chosen.left_out,
        "searched_again": chosen.searched_again,
        "messages": messages,
    }
