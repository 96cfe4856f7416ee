"""The split of every item: the dataset's own, or one that `ingest` draws among whole classes, photographs or items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hardmine.errors import InputError, UnknownNameError

TRAIN, VAL = b"train", b"val"
NONE = 255  # the code of an item that is in no split
COLUMN = "column"
RULES = {
    "by-class": "classes",
    "by-image": "photographs (or sequences of them)",
    "by-item": "items of each class",
}
_ORDER = [b"train", b"val", b"test", b"query", b"gallery"]  # then the others by name
_SEED = " seed "


@dataclass(frozen=True)
class Split:
    """How items come to their splits.

    column: by the dataset's own splits. The other rules move a seeded share 1 - fraction of the items that the dataset
    would train on (its `train`, or everything if it has no splits) to `val`; its other splits stay as they are.
    by-class draws whole classes. by-image draws whole photographs and keeps photographs that share a class together, so
    that no photograph, and no sequence of photographs of one scene, is seen on both sides. by-item draws items inside
    each class: fraction x size of them, rounded down but at least one, stay in `train`.
    """

    rule: str
    fraction: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        return self.rule if self.rule == COLUMN else f"{self.rule}:{self.fraction!r}{_SEED}{self.seed}"


@dataclass(frozen=True)
class Items:
    """What a split goes by, one value per item: label int64 (N,); image int64 (N,) or None; official 'S' (N,), the
    dataset's own split (b"": none), or None."""

    label: np.ndarray
    image: np.ndarray | None = None
    official: np.ndarray | None = None


@dataclass(frozen=True)
class Splits:
    """names: the splits. codes: uint8 (N,), the position in `names` of each item's split; NONE where it has none."""

    names: list[str]
    codes: np.ndarray


def parse_split(text: str | None, seed: int) -> Split | None:
    """`column`, or RULE:FRACTION; None is None, whatever the seed. Raises UnknownNameError for a rule that is none,
    InputError for a fraction outside (0, 1)."""
    if text is None or text == COLUMN:
        return None if text is None else Split(COLUMN)
    rule, _, fraction = text.partition(":")
    if rule not in RULES:
        raise UnknownNameError("split rule", rule, [*RULES, COLUMN])
    try:
        value = float(fraction)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise InputError(f"split {text!r}: write {rule}:FRACTION, a fraction of the {RULES[rule]} between 0 and 1")
    return Split(rule, value, seed)


def recorded_split(text: str | None) -> Split | None:
    """The split that `str` turned into `text`."""
    rule, _, seed = (text or "").partition(_SEED)
    return parse_split(rule or None, int(seed or 0))


def choose(split: Split | None, official: np.ndarray | None) -> Split | None:
    """The rule to go by: the one asked for, else the dataset's own splits where it has any."""
    if split is None and official is not None and np.any(official != b""):
        return Split(COLUMN)
    return split


def assign(split: Split, items: Items, there: Splits | None = None) -> Splits:
    """The split of every item.

    there: the splits of the first `len(there.codes)` of the items, which are in a store already and stay where they
    are; classes and photographs that they show on one side keep to it, and only the others are drawn.

    Raises InputError where a side would be empty, where the rule needs what the dataset does not say, or where new
    items would join photographs of both sides.
    """
    there = there or Splits([], np.zeros(0, np.uint8))
    old = len(there.codes)
    own = _own(split, items, len(items.label) - old)
    if split.rule == COLUMN:
        return _coded(there, own)
    names = [name.encode() for name in there.names]
    side = np.full(len(items.label), -1, np.int64)  # of the items to choose from: 0 train, 1 val, -1 to be drawn
    for code, name in enumerate((TRAIN, VAL)):
        if name in names:
            side[:old][there.codes == names.index(name)] = code
    pool = np.concatenate([side[:old] >= 0, own == TRAIN])
    if not pool.any():
        raise InputError(f"split {split.rule}: the dataset's own splits have no train to divide; use `column`")
    drawn = _draw(split, items, pool, side, fresh=not old)
    new = np.flatnonzero(pool[old:])
    own[new] = np.where(drawn[len(drawn) - len(new) :] == 0, TRAIN, VAL)
    return _coded(there, own, expected=[TRAIN, VAL])


def _own(split: Split, items: Items, count: int) -> np.ndarray:
    """'S' (count,): the dataset's own split of the new items; `train` for all where it has none."""
    if items.official is None or not np.any(items.official != b""):
        if split.rule == COLUMN and count:
            raise InputError("split column: this dataset does not say which split an item is in; use by-class:FRACTION")
        return np.full(count, TRAIN, "S5")
    return items.official.astype(f"S{max(5, items.official.dtype.itemsize)}")


def _draw(split: Split, items: Items, pool: np.ndarray, side: np.ndarray, fresh: bool) -> np.ndarray:
    """int64, 0 train or 1 val, of each item in `pool`. fresh: none of them has a side yet, and both must get some."""
    label, side = items.label[pool], side[pool]
    rng = np.random.default_rng(split.seed if fresh else [split.seed, int((side >= 0).sum())])
    if split.rule == "by-item":
        drawn = _draw_items(split.fraction, np.unique(label, return_inverse=True)[1].reshape(-1), side, rng)
        if fresh and (drawn == 0).all():
            raise InputError(f"split by-item:{split.fraction:g}: no class is large enough to leave an item to `val`")
        return drawn
    group = _groups(split.rule, label, None if items.image is None else items.image[pool])
    sides = np.full(int(group.max()) + 1, -1, np.int64)
    for code in (0, 1):
        members = group[side == code]
        if (sides[members] == 1 - code).any():
            raise InputError(
                "split by-image: new items join photographs that are on both sides; ingest all of it again"
            )
        sides[members] = code
    open_groups = np.flatnonzero(sides < 0)
    train = round(split.fraction * len(sides)) - int((sides == 0).sum())
    if fresh and not 0 < train < len(sides):
        raise InputError(
            f"split {split.rule}:{split.fraction:g} of {len(sides)} {RULES[split.rule]} leaves one side empty: choose "
            "another fraction, or none"
        )
    shuffled = open_groups[rng.permutation(len(open_groups))]
    sides[open_groups] = 1
    sides[shuffled[: max(0, train)]] = 0
    return sides[group]


def _draw_items(fraction: float, label: np.ndarray, side: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    size = np.bincount(label)
    train = np.maximum(1, np.floor(fraction * size + 1e-9)).astype(np.int64) - np.bincount(
        label[side == 0], minlength=len(size)
    )
    drawn = side.copy()
    new = np.flatnonzero(side < 0)
    order = new[np.lexsort((rng.random(len(new)), label[new]))]
    sizes = np.bincount(label[new], minlength=len(size))
    rank = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[label[order]]
    drawn[order] = rank >= train[label[order]]
    return drawn


def _groups(rule: str, label: np.ndarray, image: np.ndarray | None) -> np.ndarray:
    """int64 (N,): items of one group, numbered from 0, stay together."""
    classes, label = _numbered(label)
    if rule == "by-class":
        return label
    if image is None:
        raise InputError("split by-image: this dataset does not say which photograph an item is from; use by-class")
    photographs, number = _numbered(image)
    size = classes + photographs
    graph = coo_array((np.ones(len(label), bool), (label, classes + number)), shape=(size, size))
    component = connected_components(graph, directed=False)[1]
    return np.unique(component[:classes], return_inverse=True)[1].reshape(-1)[label]


def _numbered(values: np.ndarray) -> tuple[int, np.ndarray]:
    """How many different values there are, and int64 (N,) the number of each in ascending order."""
    distinct, number = np.unique(values, return_inverse=True)
    return len(distinct), number.reshape(-1)


def _coded(there: Splits, own: np.ndarray, expected: Sequence[bytes] = ()) -> Splits:
    """The splits with those of the new items, `own`, after the ones that are there."""
    new = _ordered({*np.unique(own).tolist(), *expected} - {b"", *(name.encode() for name in there.names)})
    try:
        names = [*there.names, *(name.decode() for name in new)]
    except UnicodeDecodeError as error:
        raise InputError(f"the name of a split is not UTF-8: {error.object!r}") from error
    if len(names) > NONE:
        raise InputError(f"{len(names)} splits: at most {NONE} are possible. Is the split column the right one?")
    codes = np.full(len(own), NONE, np.uint8)
    for code, name in enumerate(names):
        codes[own == name.encode()] = code
    return Splits(names, np.concatenate([there.codes, codes]))


def _ordered(names: Iterable[bytes]) -> list[bytes]:
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
