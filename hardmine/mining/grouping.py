"""Which classes meet in a batch: groups of classes that are near each other in a mining round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Choose = Callable[[int, np.ndarray, int], np.ndarray]  # (seed class, allowed places of its list, most) -> places


def first_ones(seed: int, place: np.ndarray, most: int) -> np.ndarray:
    """The nearest of the allowed classes."""
    return place[:most]


def grouped_classes(
    order: np.ndarray,
    nearest: np.ndarray,
    usable: np.ndarray,
    *,
    count: int,
    group: int,
    share: float,
    choose: Choose = first_ones,
) -> np.ndarray:
    """The classes of a batch, int64 (count,), each once, in the order they enter: seeds in the given order, each with
    at most group - 1 of its nearest classes that `choose` picks, until `share` of the batch is full; then seeds alone.

    order: int64, `count` or more different usable classes. nearest: int64 (C, K), nearest first, -1 padded. usable:
    bool (C,), classes that may be in a batch. A seed whose nearest classes are taken or not usable has a smaller group.
    """
    taken: dict[int, None] = {}
    full = round(share * count)
    for seed in order.tolist():
        if len(taken) == count:
            break
        if seed in taken:
            continue
        taken[seed] = None
        most = min(group - 1, full - len(taken))
        if most > 0:
            near = nearest[seed]
            allowed = np.flatnonzero((near >= 0) & usable[near] & ~np.isin(near, list(taken)))
            taken.update(dict.fromkeys(near[choose(seed, allowed, most)].tolist()))
    return np.fromiter(taken, np.int64, count)
