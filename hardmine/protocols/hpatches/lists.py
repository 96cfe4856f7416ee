"""The benchmark's random lists, drawn again: numpy's legacy generator seeded with 42, in the order of its own script.

For an official split with all of its sequences there, the verification lists are the official ones; the rule gives the
benchmark's documented first rows. The lists of other sequences follow the same rule.
Source: hpatches/hpatches-benchmark, python/utils/tasks.py and docs/tasks.md.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from hardmine.errors import InputError
from hardmine.protocols.hpatches.task_files import Items, Pairs
from hardmine.store.files import replacing

SEED = 42
PAIRS, QUERIES, DISTRACTORS = 1_000_000, 10_000, 20_000  # rows of the official lists
MIN_STD = 10.0  # grey values; flatter patches are neither queries nor distractors
_VERSION = 1  # of the kept files
Lists = tuple[Pairs, Pairs, Pairs]  # positives, negatives within a sequence, negatives between sequences


@lru_cache(maxsize=1)
def verification_lists(lengths: tuple[int, ...], pairs: int = PAIRS, seed: int = SEED) -> Lists:
    """The three lists over sequences of so many patches. About 20 microseconds a row.

    A sequence is drawn for every row; then two patches of it, the first two of a permutation; then two of its images
    0..4 (image 5 never); then, for the negatives between sequences, another sequence and patch, which may be the same
    again. Positives are the first patch in both images. Raises InputError for a sequence of one patch.
    """
    if min(lengths) < 2:
        raise InputError("a sequence of one patch has no negative pair: leave it out, or give lists with tasks=DIR")
    random = np.random.RandomState(seed)
    size = np.array(lengths)
    s = random.choice(len(lengths), pairs)
    patches, images = np.empty((pairs, 2), np.int32), np.empty((pairs, 2), np.int32)
    permutation = random.permutation
    for row, length in enumerate(size[s].tolist()):
        patches[row] = permutation(length)[:2]
    for row in range(pairs):
        images[row] = permutation(5)[:2]
    other = random.choice(len(lengths), pairs)
    patch = random.randint(size[other]).astype(np.int32)
    s, other = s.astype(np.int32), other.astype(np.int32)
    (first, second), (t1, t2) = patches.T.copy(), images.T.copy()
    return (
        Pairs(s, t1, first, s, t2, first),
        Pairs(s, t1, first, s, t2, second),
        Pairs(s, t1, first, other, t2, patch),
    )


def kept_verification_lists(folder: Path | None, lengths: tuple[int, ...], pairs: int, seed: int) -> Lists:
    """`verification_lists`, read from `folder` where they were kept there, or else drawn and kept."""
    if folder is None:
        return verification_lists(lengths, pairs, seed)
    key = hashlib.sha256(json.dumps([_VERSION, lengths, pairs, seed]).encode()).hexdigest()[:16]
    file = folder / f"hpatches-verification-{key}.npz"
    names = ("positives", "intra", "inter")
    if file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            positives, intra, inter = (Pairs(*kept[name]) for name in names)
        return positives, intra, inter
    lists = verification_lists(lengths, pairs, seed)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {n: np.stack([p.s1, p.t1, p.i1, p.s2, p.t2, p.i2]) for n, p in zip(names, lists, strict=True)}
    with replacing(file) as temporary, temporary.open("wb") as opened:
        np.savez(opened, allow_pickle=False, **arrays)
    return lists


def retrieval_lists(
    lengths: tuple[int, ...],
    contrast: np.ndarray,
    queries: int = QUERIES,
    distractors: int = DISTRACTORS,
    seed: int = SEED,
) -> tuple[Items, Items]:
    """Queries and distractors, patches of the reference strips.

    contrast: float (sum of lengths,), the standard deviation of each reference patch's grey values, sequence by
    sequence. Four times as many queries and ten times as many distractors are drawn as asked for, a sequence and then a
    patch of it; those of contrast 10 or less and repeats go; the first that are left are taken, for the distractors
    those that are no queries. Of few patches, at most a third become queries. Raises InputError where none is left.
    """
    random = np.random.RandomState(seed)
    size, start = np.array(lengths), np.cumsum([0, *lengths])[:-1]
    good = contrast > MIN_STD
    wanted = min(queries, int(good.sum()) // 3)
    drawn = []
    for count in (4 * queries, 10 * distractors):
        s = random.choice(len(lengths), count)
        place = start[s] + random.randint(size[s])
        place = place[good[place]]
        drawn.append(place[np.sort(np.unique(place, return_index=True)[1])])
    query = drawn[0][:wanted]
    distractor = drawn[1][~np.isin(drawn[1], query)][:distractors]
    if not len(query) or not len(distractor):
        raise InputError(
            f"{int(good.sum())} of {len(good)} reference patches have a contrast above {MIN_STD:g}: too few for "
            "queries and distractors"
        )
    return _items(query, start), _items(distractor, start)


def _items(place: np.ndarray, start: np.ndarray) -> Items:
    s = np.searchsorted(start, place, side="right") - 1
    return Items(s.astype(np.int32), (place - start[s]).astype(np.int32))
