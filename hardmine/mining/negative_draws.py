"""Negatives drawn among all items by a rule's weights, without replacement.

The k largest of log w + Gumbel noise are k draws without replacement in proportion to w, and need no normalisation:
every anchor for itself, in log space (Gumbel-top-k; Vieira 2014, Kool et al., ICML 2019).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from hardmine.mining.candidates import Candidates, first_of_each_class, uniforms
from hardmine.mining.negative_lists import Chosen
from hardmine.mining.negative_rules import DrawnRule
from hardmine.store.distances import as_tensor, pair_distances

DISTANCES_AT_ONCE = 1 << 22
ITEMS_AT_ONCE = 1 << 12


def draw(
    world: Candidates,
    lines: np.ndarray,
    positive: np.ndarray,
    k: int,
    rule: DrawnRule,
    class_balanced: bool,
    seed: int,
    step: int,
    pool: int | None,
) -> Chosen:
    """For each anchor (a line) k negatives drawn by `rule`. pool: look at this many items only, drawn evenly."""
    items = np.arange(len(world.rows))
    if pool is not None and pool < len(items):
        rng = np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, 1, 0]))
        items = np.sort(rng.choice(len(items), pool, replace=False))
    chosen = Chosen(np.full((len(lines), k), -1, np.int64), *np.zeros((2, len(lines)), np.int64))
    counts: Counter[str] = Counter({"near duplicates": 0, "overlapping classes": 0, "excluded": 0})
    block = max(1, DISTANCES_AT_ONCE // max(1, len(items)))
    for start in range(0, len(lines), block):
        some = slice(start, start + block)
        anchors = lines[some]
        distance = _all_distances(world, anchors, items).astype(np.float64)
        other_class = world.labels[anchors][:, None] != world.labels[items][None, :]
        other = np.where(other_class, items[None, :], -1)
        out = world.left_out(anchors, other, distance)
        for name, mask in out.items():
            counts[name] += int(mask.sum())
        candidate = other_class & ~np.any(list(out.values()), axis=0)
        d_ap, dim = positive[some].astype(np.float64), world.x.shape[1]
        log_w = rule.log_weight(distance, candidate, d_ap, dim)
        remaining = np.isfinite(log_w).sum(1)
        fitting = remaining.copy()
        few = np.flatnonzero(remaining < k)
        if len(few):
            fitting[few] = np.isfinite(rule.log_weight(distance[few], other_class[few], d_ap[few], dim)).sum(1)
        chosen.remaining[some], chosen.fitting[some] = remaining, fitting
        for i, anchor in enumerate(anchors):
            u = uniforms(seed, step, int(world.rows[anchor]), len(world.rows))[items]
            column = _draw_one(log_w[i], u, k, world.labels[items] if class_balanced else None)
            chosen.lines[start + i, : len(column)] = items[column]
    chosen.left_out = dict(counts)
    return chosen


def _draw_one(log_w: np.ndarray, u: np.ndarray, k: int, labels: np.ndarray | None) -> np.ndarray:
    """Columns of at most k draws, in the order drawn. labels: of the candidates, to be balanced over, or None."""
    column = np.flatnonzero(np.isfinite(log_w))
    log_w, u = log_w[column], u[column]
    if labels is not None and len(column):
        _, own, members = np.unique(labels[column], return_inverse=True, return_counts=True)
        log_w = log_w - np.log(members[own])
    score = log_w - np.log(-np.log(np.maximum(u, np.finfo(np.float64).tiny)))
    if labels is None and len(column) > k:
        best = np.argpartition(-score, k - 1)[:k]
        column, score = column[best], score[best]
    column = column[np.argsort(-score, kind="stable")]
    return column[:k] if labels is None else column[first_of_each_class(labels[column])][:k]


@torch.inference_mode()
def _all_distances(world: Candidates, anchors: np.ndarray, items: np.ndarray) -> np.ndarray:
    """float32 (n, m): the distances that lists hold too, to the bit."""
    x, query = as_tensor(world.x[items]), as_tensor(world.x[anchors])
    out = torch.empty(len(anchors), len(items))
    for first in range(0, len(items), ITEMS_AT_ONCE):
        part = x[first : first + ITEMS_AT_ONCE]
        for i in range(len(anchors)):
            out[i, first : first + len(part)] = pair_distances(query[i], part)
    return out.numpy()
