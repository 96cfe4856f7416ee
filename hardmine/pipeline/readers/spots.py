"""Evaluation pairs for classes that are spots of images: matching ones from one spot, non-matching ones from two spots
of the same image (or sequence) that are far enough apart not to show the same thing."""

from __future__ import annotations

import numpy as np

from hardmine.pipeline.readers.base import Pair

_MIN_APART = 16.0  # pixels


def add_pairs(
    pairs: dict[str, Pair],
    counts: dict[str, int],
    wanted: int,
    offsets: np.ndarray,
    group: np.ndarray,
    frames: np.ndarray,
    reach: float,
    generator: np.random.Generator,
) -> None:
    """Add the list `pairs_<wanted>`, with up to so many pairs of each kind and none twice; `counts` says what is short.

    offsets: int64 (C + 1), class c has the candidates offsets[c]..offsets[c + 1] - 1. group: int64 (C,) ascending, the
    image or sequence of each class. frames: (C, 4) of each class in one image of its group. Nothing is added if either
    kind would be empty.
    """
    if wanted == 0:
        return
    matching = matching_pairs(offsets, wanted, generator)
    others = other_pairs(offsets, group, frames, reach, wanted, generator)
    for kind, found in (("matching", matching), ("non-matching", others)):
        if len(found) < wanted:
            counts[f"{kind} evaluation pairs short of {wanted}"] = wanted - len(found)
    if len(matching) and len(others):
        both = np.concatenate([matching, others])
        match = np.arange(len(both)) < len(matching)
        order = generator.permutation(len(both))
        pairs[f"pairs_{wanted}"] = Pair(both[order, 0], both[order, 1], match[order])


def matching_pairs(offsets: np.ndarray, wanted: int, generator: np.random.Generator) -> np.ndarray:
    """Up to `wanted` distinct pairs of two candidates of one class, int64 (P, 2), first < second.

    Every class gives its first pair before any gives its second, and so on, so that classes count alike."""
    size = np.diff(offsets)
    capacity = size * (size - 1) // 2
    quota = np.zeros(len(size), np.int64)
    left = min(wanted, int(capacity.sum()))
    while left:
        open_classes = np.flatnonzero(quota < capacity)
        chosen = generator.permutation(open_classes)[:left]
        quota[chosen] += 1
        left -= len(chosen)
    found = [np.zeros((0, 2), np.int64)]
    for c in np.flatnonzero(quota):
        which = generator.choice(capacity[c], quota[c], replace=False)
        found.append(offsets[c] + np.stack(np.triu_indices(size[c], 1), axis=1)[which])
    return np.concatenate(found)


def other_pairs(
    offsets: np.ndarray,
    group: np.ndarray,
    frames: np.ndarray,
    reach: float,
    wanted: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Up to `wanted` distinct pairs of candidates of two classes of one group, int64 (P, 2), first < second.

    The classes' positions are more than 16 pixels and more than half a patch (of the larger of the two) apart. Drawn by
    chance; when many draws in a row bring nothing new, the group has no more."""
    found: dict[tuple[int, int], None] = {}
    start = np.searchsorted(group, group, side="left")
    end = np.searchsorted(group, group, side="right")
    idle = 0
    while len(found) < wanted and len(group) and idle < 20:
        before = len(found)
        a = generator.integers(len(group), size=wanted + 256)
        b = generator.integers(start[a], end[a])
        apart = np.hypot(*(frames[a, :2] - frames[b, :2]).T)
        far = apart > np.maximum(_MIN_APART, reach / 2 * np.maximum(frames[a, 2], frames[b, 2]))
        a, b = a[far], b[far]
        first = generator.integers(offsets[a], offsets[a + 1])
        second = generator.integers(offsets[b], offsets[b + 1])
        for i, j in zip(np.minimum(first, second).tolist(), np.maximum(first, second).tolist(), strict=True):
            if len(found) < wanted:
                found[i, j] = None
        idle = idle + 1 if len(found) == before else 0
    return np.array(list(found), np.int64).reshape(-1, 2)
