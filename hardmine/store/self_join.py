"""Neighbour lists of a set for its own items: a distance is computed once for both of its ends.

Each item's limit is a guess of how far its (K + 1)-th neighbour of another label is at most, by a sample; what is
within the limits is found in one pass (`within`). An item whose list that does not settle is left to `by_rows`, so a
wrong guess costs time and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from hardmine.store.distances import listed_distances
from hardmine.store.lists import SPARE, Lists, sorted_lists
from hardmine.store.ordered import in_order_on
from hardmine.store.sets import Sets
from hardmine.store.within import MOST_ITEMS, STRIDE, Within, column_of, key, line_of, value_of

LEAST_ITEMS = 1 << 13  # a smaller set is searched at once by rows
LEAST_SAMPLED = 4  # times the sampled items that make a limit must be there
MOST_WAITING = 1 << 26  # keys that may wait for their item's turn: 512 MB


def pays(sets: Sets, k: int) -> bool:
    """Whether a set is searched for its own items, on a CPU, and has so many that it is faster this way."""
    count = len(sets.rows)
    if not sets.of_itself or sets.base.device.type != "cpu" or not LEAST_ITEMS <= count < MOST_ITEMS:
        return False
    return LEAST_SAMPLED * (k + 1) <= count // STRIDE


@torch.inference_mode()
def fill(sets: Sets, everything: Lists | None, others: Lists | None) -> np.ndarray:
    """Fill the lists of a set's own items as `by_rows.fill` does; int64: the queries whose lists are not settled."""
    return _Join(sets, everything, others).left_over()


class _Join:
    """The set in order of label, and its lists under construction. query: int64 (N,), the query that each item is."""

    def __init__(self, sets: Sets, everything: Lists | None, others: Lists | None):
        self.sets, self.everything, self.others = sets, everything, others
        self.query = np.argsort(sets.self_column)
        distinct = np.arange(len(sets.rows), dtype=np.int32)
        ranges = sets.same_label
        self.label = distinct if ranges is None else ranges[self.query, 0].astype(np.int32)
        self.k = max(each.k for each in (everything, others) if each is not None)
        # an item is not its own neighbour; others of its label are, where all are listed
        self.within = Within(sets.base.numpy(), distinct if everything is not None else self.label)
        self.nth = int(np.searchsorted(self.within.likely, self.k + 1))

    def left_over(self) -> np.ndarray:
        """Fill what can be settled, on as many threads as torch has; the queries that are left."""
        left = []
        with in_order_on(torch.get_num_threads()) as every:
            limits, waiting = [], 0
            for limit, expected in every(self._limit, self.within.parts):
                limits.append(limit)
                waiting += expected // 4
                if waiting > MOST_WAITING:
                    return np.arange(len(self.query))
            for part, limit, keys in zip(self.within.parts, limits, self.within.together(limits, every)):
                settled = self._take(part, limit, np.sort(np.concatenate(keys)))
                left.append(self.query[part[~settled]])
        return np.sort(np.concatenate(left))

    def _limit(self, part: np.ndarray) -> tuple[np.ndarray, int]:
        """Limits float32 (B,) of a block, squared, and about how many items are within them."""
        sampled = self.within.sampled(self.within.left(part))
        same = self.label[self.within.sample] == self.label[part, None]
        limit = np.partition(np.where(same, np.inf, sampled), self.nth, axis=1)[:, self.nth].copy()  # alone
        found = sampled <= limit[:, None]
        return limit, STRIDE * int(np.count_nonzero(found if self.everything is not None else found & ~same))

    def _take(self, part: np.ndarray, limit: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Put the lists of a block in their place; bool (B,): whose are settled. keys: sorted."""
        settled, found = np.ones(len(part), bool), []
        for lists, mine in self._by_list(part, keys):
            rows, distance, sure = self._listed(part, limit, mine, lists.k)
            settled &= sure
            found.append((lists, rows, distance))
        for lists, rows, distance in found:
            lists.take(self.query[part[settled]], rows[settled], distance[settled])
        return settled

    def _by_list(self, part: np.ndarray, keys: np.ndarray) -> Iterator[tuple[Lists, np.ndarray]]:
        """Each of the lists, with the keys it is made of."""
        if self.everything is not None:
            yield self.everything, keys
        if self.others is not None:
            alike = self.label[column_of(keys)] == self.label[part][line_of(keys)]
            yield self.others, keys if self.everything is None else keys[~alike]

    def _listed(
        self, part: np.ndarray, limit: np.ndarray, keys: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows and distances (B, k + 1), sorted, and for which lines nothing that was not looked at belongs there."""
        width = k + SPARE
        start = np.searchsorted(keys, key(np.arange(len(part) + 1), 0.0, 0))
        start, count = start[:-1], np.diff(start)
        place = start[:, None] + np.arange(width + 1)
        there = np.arange(width + 1) < count[:, None]
        picked = keys[np.where(there, place, 0)] if len(keys) else np.zeros(place.shape, np.int64)
        column = np.where(there, column_of(picked), 0)
        value = np.where(there, value_of(picked), np.inf)
        beyond = np.minimum(value[:, width], limit)
        sure = value[:, k - 1] + self.within.slack[part] < beyond
        line = torch.from_numpy(part.repeat(width))
        distance = listed_distances(self.sets.base, line, self.sets.base, torch.from_numpy(column[:, :-1].reshape(-1)))
        distances = np.where(there[:, :-1], distance.numpy().reshape(-1, width), np.float32(np.inf))
        return *sorted_lists(self.sets.rows[column[:, :-1]], distances, k + 1), sure
