"""Audit: what in a data set would mislead mining: duplicates, label conflicts, overlap, outliers, collapse.

Looks at the pixels of the store and at one mined round of it; needs no network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from hardmine.errors import InputError, StoreError
from hardmine.mining.exclusions import Exclusions
from hardmine.mining.label_noise import label_noise, mixed_classes, outlier_scores
from hardmine.mining.mine import COLLAPSED
from hardmine.mining.overlap import Overlap
from hardmine.options import Options
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import Round
from hardmine.store.search import nearest_both

BLOCK = 4096  # items whose pixels are read at once
Progress = Callable[[int, int], None]  # (items hashed, items in all)


class AuditOptions(Options):
    """near: descriptors closer than this are near duplicates. neighbours: length of the lists that near duplicates,
    mixed classes and label noise are looked for in. mixed: two classes overlap where each has at least this share of
    its items' nearest neighbours in the other. outlier: items with a higher score are outliers. overlap_factor: see
    `Overlap`. suspects: how many of the likeliest wrong labels are listed and put on the exclusion list."""

    near: float = Field(0.05, ge=0)
    neighbours: int = Field(16, ge=1)
    mixed: float = Field(0.25, ge=0, le=1)
    outlier: float = Field(0.2, ge=-1, le=1)
    overlap_factor: float = Field(1.0, ge=0)
    suspects: int = Field(0, ge=0)


@dataclass(frozen=True)
class Audit:
    """What was found. Rows are of the patch store, labels are class numbers.

    duplicates: groups of rows with the same pixels, each ascending. near: int64 (P, 2), pairs of rows (first <
    second) with near descriptors and different pixels, nearest first; near_distance: float32 (P,). near_cut: items
    with more near duplicates than the lists hold. conflicts: int64 (Q, 2), pairs of rows of either kind under two
    labels, those of equal pixels first (each of a group with the first of another label). overlapping: int64 (R,
    2), classes with near positions in one image (none where positions are unknown). mixed: int64 (S, 2), classes
    mixed in the neighbour lists, most mixed first; mixed_share float64 (S,). rows: int64 (N,), items of the round;
    outlier, noise: float64 (N,), scores, NaN where there is none (see `label_noise`). suspect_order: int64, numbers
    of items by descending noise. spread, length: root mean squared distance from the mean descriptor, and length.
    split: of the round."""

    store: PatchStore
    options: AuditOptions
    split: str
    duplicates: list[np.ndarray]
    near: np.ndarray
    near_distance: np.ndarray
    near_cut: int
    conflicts: np.ndarray
    overlapping: np.ndarray
    positions_known: bool
    mixed: np.ndarray
    mixed_share: np.ndarray
    rows: np.ndarray
    outlier: np.ndarray
    noise: np.ndarray
    suspect_order: np.ndarray
    spread: float
    length: float

    @property
    def collapsed(self) -> bool:
        """Whether the descriptors coincide."""
        return self.spread <= COLLAPSED * self.length

    @property
    def outliers(self) -> np.ndarray:
        """int64: rows whose outlier score is above the option, highest first."""
        with np.errstate(invalid="ignore"):
            found = np.flatnonzero(self.outlier > self.options.outlier)
        return self.rows[found[np.argsort(-self.outlier[found], kind="stable")]]

    @property
    def suspects(self) -> np.ndarray:
        """int64: rows of the `suspects` likeliest wrong labels, likeliest first; fewer where fewer items have a
        neighbour of another label that speaks against theirs."""
        first = self.suspect_order[: self.options.suspects]
        return self.rows[first[self.noise[first] > 0]]  # NaN, of an item alone in its class, is not above 0

    def across_splits(self) -> int:
        """Groups of equal pixels that lie in more than one split: what is tested on was trained on."""
        split = self.store.column("split")
        return 0 if split is None else sum(len(np.unique(split[group])) > 1 for group in self.duplicates)

    def counts(self) -> dict[str, Any]:
        """What was found, for a table: a title to a number."""
        within = [g for g in self.duplicates if len(np.unique(self.store.label[g])) == 1]
        return {
            "items of the round": len(self.rows),
            "groups of equal pixels": len(self.duplicates),
            "of them within one class": len(within),
            "of them across splits": self.across_splits(),
            f"near duplicates (below {self.options.near:g})": len(self.near),
            "items with more near duplicates than listed": self.near_cut,
            "pairs under two labels": len(self.conflicts),
            "overlapping classes by position": len(self.overlapping) if self.positions_known else None,
            "classes mixed in the neighbour lists": len(self.mixed),
            f"outliers (score above {self.options.outlier:g})": len(self.outliers),
            "suspected labels": len(self.suspects),
            "spread": self.spread,
            "collapsed": self.collapsed,
        }

    def json(self, most: int = 1000) -> dict[str, Any]:
        """The findings as a JSON object, `most` of each kind; counts are of all."""
        score = dict(zip(self.rows.tolist(), self.outlier.tolist()))
        noise = dict(zip(self.rows.tolist(), self.noise.tolist()))
        return {
            "split": self.split,
            "options": self.options.model_dump(mode="json"),
            "counts": self.counts(),
            "duplicates": [[self._item(r) for r in group.tolist()] for group in self.duplicates[:most]],
            "near_duplicates": [
                {"distance": float(d), "items": [self._item(r) for r in pair]}
                for pair, d in zip(self.near[:most].tolist(), self.near_distance)
            ],
            "conflicts": [[self._item(r) for r in pair] for pair in self.conflicts[:most].tolist()],
            "overlapping_classes": self.overlapping[:most].tolist(),
            "mixed_classes": [
                {"classes": pair, "share": float(share)}
                for pair, share in zip(self.mixed[:most].tolist(), self.mixed_share)
            ],
            "outliers": [self._item(r) | {"score": score[r]} for r in self.outliers[:most].tolist()],
            "suspects": [self._item(r) | {"noise": noise[r]} for r in self.suspects[:most].tolist()],
        }

    def exclusions(self) -> Exclusions:
        """Rows of the round's split that training is better off without, each with its first reason: every item under
        two labels, all but the first of equal pixels in one class, and the suspected labels. Overlapping classes and
        outliers are for people to judge and are not on it."""
        reasons: dict[int, str] = {}
        for first, second in self.conflicts.tolist():
            for row, other in ((first, second), (second, first)):
                reasons.setdefault(row, f"the same as row {other} under another label")
        inside = set(self.rows.tolist())
        for group in self.duplicates:
            here = [r for r in group.tolist() if r in inside]
            for row in here[1:]:
                reasons.setdefault(row, f"equal pixels as row {here[0]}")
        for row in self.suspects.tolist():
            reasons.setdefault(row, "its neighbours have other labels")
        return Exclusions(self.store.fingerprint, {r: why for r, why in reasons.items() if r in inside})

    def _item(self, row: int) -> dict[str, Any]:
        raw = self.store.raw_label[row]
        split = self.store.column("split")
        return {
            "row": int(row),
            "label": int(self.store.label[row]),
            "class": raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else int(raw),
            "source": bytes(self.store.source[row]).decode("utf-8", "backslashreplace"),
            "split": self.store.split_names[0 if split is None else int(split[row])],
        }


def audit(
    store: PatchStore, source: Round, options: AuditOptions | None = None, *, progress: Progress | None = None
) -> Audit:
    """Look for what would mislead mining. Equal pixels are looked for in all used rows of the store, everything else
    among the items of the round. The round's own neighbour lists are used where it has them, long enough.

    Raises StoreError where the round is of another patch store, InputError where it has fewer than two items.
    """
    options = options or AuditOptions()
    items = source.items
    rows, labels = source.entry_row[items], source.entry_label[items]
    if source.key["patches"] != store.fingerprint:
        raise StoreError(
            f"round {source.number} was mined from the patch store {source.key['patches'][:12]}..., but {store.path} "
            f"is {store.fingerprint[:12]}...: mine it again, then audit it"
        )
    if len(rows) < 2:
        raise InputError(f"round {source.number} has one item: there is nothing to compare it with")
    x = source.descriptors()[items]
    near_rows, near_distance, other_distance = _lists(source, options.neighbours)
    duplicates, group_of = equal_pixels(store, progress)
    near, distance, cut = _near_pairs(rows, near_rows, near_distance, options.near, group_of)
    two_labels = near[store.label[near[:, 0]] != store.label[near[:, 1]]]
    conflicts = np.concatenate([*(_conflicts(group, store.label[group]) for group in duplicates), two_labels])
    line_of = np.full(len(store), -1, np.int64)
    line_of[rows] = np.arange(len(rows))
    lists = np.where(near_rows >= 0, line_of[near_rows], -1)
    outlier = outlier_scores(x, labels, other_distance)
    noise, order = label_noise(lists, near_distance, labels, outlier)
    mixed, share = mixed_classes(lists, labels, options.mixed)
    overlap = Overlap(store, rows, options.overlap_factor)
    centred = x - x.mean(0, dtype=np.float64)
    return Audit(
        store,
        options,
        source.split,
        duplicates,
        near,
        distance,
        cut,
        conflicts,
        overlap.class_pairs(),
        overlap.known,
        mixed,
        share,
        rows,
        outlier,
        noise,
        order,
        float(np.sqrt((centred**2).sum(1).mean())),
        float(np.sqrt((x.astype(np.float64) ** 2).sum(1).mean())),
    )


def equal_pixels(store: PatchStore, progress: Progress | None = None) -> tuple[list[np.ndarray], np.ndarray]:
    """Groups int64 (m,) of two or more used rows with the same pixels (shape and bytes, by BLAKE2b of 128 bits), by
    their first row; and int64 (len(store),), the number of each row's group, -1 for none."""
    used = np.flatnonzero(store.used)
    seen: dict[bytes, list[int]] = {}
    done = 0
    for rows, pixels in store.stream(used, BLOCK):
        for row, each in zip(rows.tolist(), pixels):
            digest = hashlib.blake2b(repr(each.shape).encode(), digest_size=16)
            digest.update(np.ascontiguousarray(each).data)
            seen.setdefault(digest.digest(), []).append(row)
        done += len(rows)
        if progress is not None:
            progress(done, len(used))
    groups = [np.array(group, np.int64) for group in seen.values() if len(group) > 1]
    group_of = np.full(len(store), -1, np.int64)
    for number, group in enumerate(groups):
        group_of[group] = number
    return groups, group_of


def _conflicts(group: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Each row of a group with the first one of another label: int64 (m, 2), first < second, each pair once."""
    other = labels != labels[0]
    if not other.any():
        return np.zeros((0, 2), np.int64)
    partner = np.where(other, group[0], group[other.argmax()])
    return np.unique(np.sort(np.stack([group, partner], 1), axis=1), axis=0)


def _lists(source: Round, neighbours: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Neighbours of each item, their distances, and those of the neighbours of other labels."""
    if "knn" in source.derived and source.knn()[0].shape[1] >= neighbours:
        rows, distance = source.knn()
        return rows[:, :neighbours], distance[:, :neighbours], source.knn_other()[1][:, :neighbours]
    items = source.items
    found, others = nearest_both(
        source.descriptors()[items], source.entry_row[items], source.entry_label[items], neighbours
    )
    return found.rows, found.distance, others.distance


def _near_pairs(
    rows: np.ndarray, near_rows: np.ndarray, distance: np.ndarray, limit: float, group_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Pairs of rows closer than `limit`, first < second, nearest first, without those of equal pixels; their distances;
    and how many items have only near duplicates in their lists."""
    with np.errstate(invalid="ignore"):
        close = distance < limit
    i, j = np.nonzero(close)
    pair = np.sort(np.stack([rows[i], near_rows[i, j]], 1), axis=1)
    pair, first = np.unique(pair, axis=0, return_index=True)
    gap = distance[i, j][first]
    same = (group_of[pair[:, 0]] >= 0) & (group_of[pair[:, 0]] == group_of[pair[:, 1]])
    pair, gap = pair[~same], gap[~same]
    order = np.argsort(gap, kind="stable")
    return pair[order], gap[order], int(close.all(axis=1).sum())
