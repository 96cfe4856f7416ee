"""Neighbour lists of queries, some at a time, each compared with all items of the database.

A matrix product proposes K + 16 candidates per query. Its rounding error has a bound (Higham, Accuracy and Stability of
Numerical Algorithms, section 3.1); where that bound cannot rule out that an item beyond the candidates belongs to the
list (many equal descriptors), every item within it is taken.
"""

from __future__ import annotations

import numpy as np
import torch

from hardmine.store.distances import full_float32, listed_distances
from hardmine.store.lists import SPARE, Lists, sorted_lists
from hardmine.store.sets import Sets

GROUP = 64  # columns whose minimum stands for them when the smallest of a row are looked for
BLOCK_VALUES = 1 << 25  # distances held at once: 128 MB
MASKED_AT_ONCE = 1 << 22  # positions masked by one indexing operation


@torch.inference_mode()
def fill(sets: Sets, which: np.ndarray, everything: Lists | None, others: Lists | None, block: int | None) -> None:
    """Fill the lists of the queries `which`, int64 (n,): the nearest items of any label, and of another label. block:
    queries at once, chosen by memory where None."""
    if not len(which):
        return
    block = block or max(1, min(4096, BLOCK_VALUES // len(sets.rows)))
    base_norm = (sets.base * sets.base).sum(1)
    longest = float(base_norm.max().sqrt())
    # one buffer for all blocks: fresh memory for each costs half as much time again as the product in it
    values = room(min(block, len(which)), len(sets.rows), sets.base.device)
    with full_float32():
        for start in range(0, len(which), block):
            some = which[start : start + block]
            query = sets.query[torch.from_numpy(some)]
            approximate = values[: len(query)]  # squared distance less |query|^2
            torch.addmm(base_norm, query, sets.base.T, alpha=-2, out=approximate[:, : len(sets.rows)])
            tolerance = rounding(sets.base.shape[1]) * (query.norm(dim=1) + longest) ** 2
            _mask(approximate, sets.self_column[some])
            if everything is not None:
                everything.take(some, *_listed(sets, query, approximate, tolerance, everything.k))
            if others is not None and sets.same_label is not None:
                mask_ranges(approximate, sets.same_label[some])
                others.take(some, *_listed(sets, query, approximate, tolerance, others.k))


def rounding(dim: int) -> float:
    """Bound of the error of a squared distance by norms and a product, over (|a| + |b|)^2: gamma_(D + 32), which covers
    the rounding of the recomputed distance as well."""
    return (dim + 32) * 2.0**-24


def _mask(approximate: torch.Tensor, columns: np.ndarray) -> None:
    line = np.flatnonzero(columns >= 0)
    approximate[torch.from_numpy(line), torch.from_numpy(columns[line])] = torch.inf


def mask_ranges(approximate: torch.Tensor, ranges: np.ndarray) -> None:
    """Set a range of columns of each line to infinity. ranges: int64 (B, 2), first and last + 1."""
    length = ranges[:, 1] - ranges[:, 0]
    if length.sum() > MASKED_AT_ONCE:  # large classes: no list of positions, which would outgrow the block
        for i, (first, last) in enumerate(ranges.tolist()):
            approximate[i, first:last] = torch.inf
        return
    line = np.repeat(np.arange(len(ranges)), length)
    column = np.arange(len(line)) - np.repeat(np.cumsum(length) - length, length) + ranges[line, 0]
    approximate[torch.from_numpy(line), torch.from_numpy(column)] = torch.inf


def _listed(
    sets: Sets, query: torch.Tensor, approximate: torch.Tensor, tolerance: torch.Tensor, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and distances (B, min(k + 1, N)) of a block, sorted; -1 and NaN where masked."""
    value, column = smallest(approximate, k + SPARE, len(sets.rows))
    count = value.shape[1]
    line = torch.arange(len(query), device=query.device).repeat_interleave(count)
    distance = listed_distances(query, line, sets.base, column.reshape(-1)).reshape(-1, count)
    distance[~torch.isfinite(value)] = torch.inf
    keep = min(k + 1, count)
    rows, distances = sorted_lists(sets.rows[column.cpu().numpy()], distance.cpu().numpy(), keep)
    if count < len(sets.rows):
        limit = value[:, k - 1] + 2 * tolerance
        for i in torch.nonzero(torch.isfinite(value[:, -1]) & (value[:, -1] <= limit)).squeeze(1).tolist():
            within = torch.nonzero(approximate[i] <= limit[i]).squeeze(1)
            line = torch.full_like(within, i)
            distance = listed_distances(query, line, sets.base, within)
            row, near = sorted_lists(sets.rows[within.cpu().numpy()][None], distance.cpu().numpy()[None], keep)
            rows[i], distances[i] = row[0], near[0]
    return rows, distances


def room(lines: int, width: int, device: torch.device | None = None) -> torch.Tensor:
    """Memory for lines of `width` values that `smallest` takes without a copy: float32 (lines, whole groups), infinity
    beyond the width."""
    values = torch.empty(lines, -(-width // GROUP) * GROUP, device=device)
    values[:, width:] = torch.inf
    return values


def smallest(values: torch.Tensor, count: int, width: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` smallest of each line, ascending, and their columns. The smallest lie in the `count` groups of
    columns with the smallest minima, and those are found in a 64th of the line. width: with it, `values` is `room` for
    that many columns."""
    if width is None:
        width = values.shape[1]
        values = torch.constant_pad_nd(values, (0, -width % GROUP), torch.inf)
    lines, groups = len(values), values.shape[1] // GROUP
    if groups <= 2 * count:
        return values[:, :width].topk(min(count, width), dim=1, largest=False)
    chosen = values.unflatten(1, (groups, GROUP)).amin(2).topk(count, dim=1, largest=False, sorted=False).indices
    group = chosen + groups * torch.arange(lines, device=values.device)[:, None]
    held = values.view(-1, GROUP).index_select(0, group.reshape(-1)).view(lines, -1)
    value, place = held.topk(count, dim=1, largest=False)
    column = chosen.gather(1, place // GROUP) * GROUP + place % GROUP
    return value, column.clamp_(max=width - 1)  # beyond it there is infinity alone
