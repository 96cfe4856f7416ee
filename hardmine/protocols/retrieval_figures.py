"""Retrieval figures of queries in a gallery, from descriptors or from neighbour lists, in bounded memory.

How far the rankings have to be known decides how they are found: neighbour lists where there are some and they are long
enough; `near_match_ranks` where the K nearest will do, and for MAP@R as many as a query has matches; `match_ranks`,
which places every match, for mAP and where items are left out of some rankings. All three order by (distance, row), so
the figures are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardmine.errors import InputError, UnknownNameError
from hardmine.metrics.average_precision import (
    average_precision,
    average_precision_at_r,
    trapezoid_average_precision,
)
from hardmine.metrics.ranks import Ranks, ranks_of_lists
from hardmine.metrics.recall import any_hit, recall_fraction
from hardmine.store.near_ranks import near_match_ranks
from hardmine.store.ranking import match_ranks

RANKED = ("r@k", "recall-fraction", "map@r", "map", "map-trapezoid")
WHOLE = {"map", "map-trapezoid"}  # need the place of every match
LISTED_AT_ONCE = 1 << 20  # neighbours of a block of queries


@dataclass(frozen=True)
class Items:
    """descriptors: float (N, D). rows: int64 (N,), ascending, distinct. labels: int64 (N,), 0 or more. groups: (N,) or
    None: an item of a query's label and group is left out of its ranking (a group is what one camera saw)."""

    descriptors: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        lengths = {len(x) for x in (self.descriptors, self.rows, self.labels, self.groups) if x is not None}
        if len(lengths) != 1 or (np.diff(self.rows) <= 0).any():
            raise InputError("descriptors, rows, labels and groups go together, the rows ascending and distinct")


@dataclass(frozen=True)
class Retrieved:
    """Figures of each query that has a match, in the order of the queries.

    values: name ('r@1', 'recall-fraction@1', 'map@r', ...) to float64 (Q,), whose mean is the figure. query: int64
    (Q,), their places among the queries. first: int64 (Q,), rank of the nearest match, as far as ranks were looked at.
    lone: queries without a match, which count in no figure. depth: neighbours looked at of the query that needs the
    most, None where all. listed: whether the lists given were used. left_out: int64 (all queries,), items of its label
    and group that are not in a query's ranking.
    """

    values: dict[str, np.ndarray]
    query: np.ndarray
    first: np.ndarray
    lone: int
    depth: int | None
    listed: bool
    left_out: np.ndarray


def retrieve(
    gallery: Items,
    queries: Items | None = None,
    *,
    ks: Sequence[int] = (1,),
    metrics: Sequence[str] = ("r@k", "map@r"),
    ties: str = "row",
    lists: np.ndarray | None = None,
) -> Retrieved:
    """Rank `gallery` for each of `queries` (None: for each of the gallery, leave-one-out) and measure.

    A query's own row is never in its ranking, nor are items of its label and group, where there are groups. metrics: of
    RANKED. ties: see `match_ranks`. lists: int64 (Q, K'), the nearest gallery rows of every query by (distance, row),
    -1 padded, where they are known. Raises InputError where no query has a match or a K is below 1, and
    UnknownNameError.
    """
    for name in metrics:
        if name not in RANKED:
            raise UnknownNameError("retrieval metric", name, RANKED)
    asking = queries or gallery
    relevant, left_out = _relevant(gallery, asking)
    counted = np.flatnonzero(relevant > 0)
    if not len(counted):
        raise InputError(
            f"none of the {len(asking.rows)} queries has another item of its class in the gallery of "
            f"{len(gallery.rows)}{', but for those left out' * bool(left_out.any())}: there is nothing to find"
        )
    depth = np.where(relevant > 0, np.maximum(_deepest(ks, metrics), relevant if "map@r" in metrics else 0), 0)
    whole = bool(WHOLE & set(metrics)) or gallery.groups is not None
    listed = lists is not None and not whole and ties == "row" and lists.shape[1] >= depth.max()
    if lists is not None and listed:
        blocks = _from_lists(gallery, asking.labels, lists, counted)
    elif whole:
        blocks = _placed(gallery, queries, relevant, ties)
    else:
        blocks = _near(gallery, queries, depth, ties)
    values: dict[str, np.ndarray] = {}
    first = np.zeros(len(relevant), np.int64)
    for query, ranks in blocks:
        for name, value in _values(ranks, relevant[query], ks, metrics).items():
            values.setdefault(name, np.zeros(len(relevant)))[query] = value
        first[query] = ranks.first
    return Retrieved(
        {name: value[counted] for name, value in values.items()},
        counted,
        first[counted],
        len(relevant) - len(counted),
        None if whole else int(depth.max()),
        listed,
        left_out,
    )


def _deepest(ks: Sequence[int], metrics: Sequence[str]) -> int:
    return max(ks, default=1) if {"r@k", "recall-fraction"} & set(metrics) else 1


def _relevant(gallery: Items, queries: Items) -> tuple[np.ndarray, np.ndarray]:
    """int64 (Q,) each: gallery items that a query is to find, and those of its label and group; itself not counted."""
    itself = np.isin(queries.rows, gallery.rows)
    same_label = _count(gallery.labels, queries.labels) - itself
    if gallery.groups is None or queries.groups is None:
        return same_label, np.zeros_like(same_label)
    group = np.unique(np.concatenate([gallery.groups, queries.groups]), return_inverse=True)[1]
    own, asked = np.split(group, [len(gallery.groups)])
    most = int(group.max(initial=0)) + 1
    left_out = _count(gallery.labels * most + own, queries.labels * most + asked) - itself
    return same_label - left_out, left_out


def _count(among: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """int64: how often each of `wanted` is among the others."""
    known, count = np.unique(among, return_counts=True)
    if not len(known):
        return np.zeros(len(wanted), np.int64)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, count[place], 0)


def _values(ranks: Ranks, relevant: np.ndarray, ks: Sequence[int], metrics: Sequence[str]) -> dict[str, np.ndarray]:
    values: dict[str, np.ndarray] = {}
    if "r@k" in metrics:
        values |= {f"r@{k}": any_hit(ranks, k) for k in ks}
    if "recall-fraction" in metrics:
        values |= {f"recall-fraction@{k}": recall_fraction(ranks, relevant, k) for k in ks}
    if "map@r" in metrics:
        values["map@r"] = average_precision_at_r(ranks, relevant)
    if "map" in metrics:
        values["map"] = average_precision(ranks, relevant)
    if "map-trapezoid" in metrics:
        values["map-trapezoid"] = trapezoid_average_precision(ranks, relevant)
    return values


Blocks = Iterator[tuple[np.ndarray, Ranks]]  # int64 (B,) places of queries that have a match, and their ranks


def _from_lists(gallery: Items, labels: np.ndarray, lists: np.ndarray, counted: np.ndarray) -> Blocks:
    step = max(1, LISTED_AT_ONCE // lists.shape[1])
    for start in range(0, len(counted), step):
        query = counted[start : start + step]
        some = lists[query]
        place = np.minimum(np.searchsorted(gallery.rows, some), len(gallery.rows) - 1)
        yield query, ranks_of_lists(np.where(some >= 0, gallery.labels[place], -1), labels[query])


def _near(gallery: Items, queries: Items | None, depth: np.ndarray, ties: str) -> Blocks:
    found = near_match_ranks(gallery.descriptors, gallery.rows, gallery.labels, depth, ties=ties, **_asked(queries))
    for each in found:
        some = depth[each.query] > 0
        if some.any():
            yield each.query[some], Ranks(each.rank, _offsets(each.offsets, some), depth[each.query[some]])


def _placed(gallery: Items, queries: Items | None, relevant: np.ndarray, ties: str) -> Blocks:
    asked = _asked(queries) | ({} if queries is None else {"query_groups": queries.groups})
    found = match_ranks(gallery.descriptors, gallery.rows, gallery.labels, groups=gallery.groups, ties=ties, **asked)
    for each in found:
        some = relevant[each.start : each.start + len(each.offsets) - 1] > 0
        if some.any():
            yield each.start + np.flatnonzero(some), Ranks(each.rank, _offsets(each.offsets, some))


def _offsets(offsets: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Offsets of `some` of the queries, the others having no rank."""
    return np.concatenate([[0], np.cumsum(np.diff(offsets)[some])]).astype(np.int64)


def _asked(queries: Items | None) -> dict[str, Any]:
    if queries is None:
        return {}
    return {"queries": queries.descriptors, "query_rows": queries.rows, "query_labels": queries.labels}
