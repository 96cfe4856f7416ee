"""Which items lie within a distance of their own from each query, in blocks of bounded memory.

A sample of the database guesses how far away a query's n-th neighbour most likely is; one pass of float32 products then
keeps what is within such a limit. Where the queries are the database, a product is computed once for both of its ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import gammaincinv

from hardmine.store.by_rows import rounding
from hardmine.store.ordered import OrderedMap

STRIDE = 32  # one item in so many is looked at for a limit
WRONG = 0.03  # of the limits about so many may be too near; a surer guess has more candidates
BLOCK = 1 << 9  # queries, and items, whose squared distances are held at once: 1 MB, which stays in the cache
COLUMN_BITS = 22
MOST_ITEMS = 1 << COLUMN_BITS
VALUE_BITS = 31  # of a float32 that is not negative
MOST_QUERIES = 1 << 10  # of a block: (query, value, column) are 63 bits


class Within:
    """A database and its queries, and the pairs of them that lie within limits.

    base: float32 (N, D), N at most 4 million. base_label: int32 (N,). query: float32 (Q, D), None for the database
    itself; label: int32 (Q,). Pairs of one label are left out. What is found of a block of queries are keys, int64
    (M,), in no order; see `key`. slack: float32 (Q,): of two items whose squared distances from a query differ by more,
    the one that seems nearer is nearer, also by the float32 number of `pair_distances`.
    """

    def __init__(
        self,
        base: np.ndarray,
        base_label: np.ndarray,
        query: np.ndarray | None = None,
        label: np.ndarray | None = None,
        block: int | None = None,
    ):
        self.base, self.query = base, base if query is None else query
        self.base_label, self.label = base_label, base_label if label is None else label
        self.block = min(MOST_QUERIES, block or BLOCK)
        self.parts = [np.arange(i, min(i + self.block, len(self.query))) for i in range(0, len(self.query), self.block)]
        # [x, |x|^2, 1] . [-2 y, 1, |y|^2] is a squared distance
        self._right = np.empty((len(base), base.shape[1] + 2), np.float32)
        np.multiply(base, -2, out=self._right[:, :-2])
        self._right[:, -2], self._right[:, -1] = 1, _square_norms(base)
        length, longest = np.sqrt(_square_norms(self.query)), np.sqrt(self._right[:, -1].max(initial=0))
        self.slack = (2 * rounding(base.shape[1] + 2) * (length + longest) ** 2).astype(np.float32)
        stratum = np.arange(0, len(base), STRIDE)  # one item of each, in no step with what is inside the classes
        self.sample = np.minimum(stratum + np.random.default_rng(0).integers(STRIDE, size=len(stratum)), len(base) - 1)
        self._right_sample = self._right[self.sample]
        # items that are within the distance of the nearest sampled one, the second, ...: certainly, and most likely
        self.certain = np.arange(1.0, len(stratum) + 1)
        self.likely = np.maximum(STRIDE * gammaincinv(self.certain, WRONG), self.certain)

    def left(self, part: np.ndarray) -> np.ndarray:
        """What a product with the right gives squared distances of a block of queries, float32 (B, D + 2)."""
        query = self.query[part]
        return np.column_stack([query, _square_norms(query), np.ones(len(query), np.float32)])

    def room(self) -> np.ndarray:
        """Memory for the squared distances of one block."""
        return np.empty(self.block * self.block, np.float32)

    def squares(self, left: np.ndarray, columns: slice, room: np.ndarray | None = None) -> np.ndarray:
        """Squared distances float32 (B, n) of a block of queries to some items, in `room` where it is given."""
        return _product(left, self._right[columns], room)

    def sampled(self, left: np.ndarray) -> np.ndarray:
        """Squared distances float32 (B, sampled items) of a block of queries to those of the sample."""
        return _product(left, self._right_sample)

    def alone(self, part: np.ndarray, limit: np.ndarray) -> list[np.ndarray]:
        """Keys of the items of other labels within the limits, float32 (B,), of a block: all items are looked at."""
        left, room = self.left(part), self.room()
        starts = range(0, len(self.base), self.block)
        squares = ((first, self.squares(left, slice(first, first + self.block), room)) for first in starts)
        return [self._keys(square, limit, part, first) for first, square in squares]

    def together(self, limits: Sequence[np.ndarray], every: OrderedMap) -> Iterator[list[np.ndarray]]:
        """The same for each of the `parts` of the database itself, in order; what two have in common is looked at once.
        About a quarter of all keys wait for their block's turn at most."""
        pending: list[list[np.ndarray]] = [[] for _ in self.parts]

        def look(i: int) -> list[np.ndarray]:
            part, limit, left, room = self.parts[i], limits[i], self.left(self.parts[i]), self.room()
            square = self.squares(left, slice(part[0], part[-1] + 1), room)
            keys = [self._keys(square, limit, part, part[0])]
            for j in range(i + 1, len(self.parts)):
                square = self.squares(left, slice(self.parts[j][0], self.parts[j][-1] + 1), room)
                keys.append(self._both_keys(square, part, limit, self.parts[j], limits[j], pending[j]))
            return keys

        for i, keys in enumerate(every(look, range(len(self.parts)))):  # those before i have added theirs to `pending`
            keys += pending[i]
            pending[i] = []
            yield keys

    def _keys(self, square: np.ndarray, limit: np.ndarray, part: np.ndarray, first: int) -> np.ndarray:
        """Keys of the items of other labels within each query's limit, of the columns from `first` on."""
        flat = np.flatnonzero(square <= limit[:, None])
        line, place = np.divmod(flat, square.shape[1])
        other = self.base_label[first + place] != self.label[part][line]
        return key(line[other], square.reshape(-1)[flat[other]], first + place[other])

    def _both_keys(
        self,
        square: np.ndarray,
        part: np.ndarray,
        limit: np.ndarray,
        later: np.ndarray,
        its_limit: np.ndarray,
        its: list[np.ndarray],
    ) -> np.ndarray:
        """The same of the columns of a later block; and to `its` keys those that this block gives the later one."""
        flat = np.flatnonzero((square <= limit[:, None]) | (square <= its_limit))
        line, place = np.divmod(flat, len(later))
        value = square.reshape(-1)[flat]
        if self.base_label[part[-1]] == self.base_label[later[0]]:  # a class lies in both
            other = self.base_label[part[0] + line] != self.base_label[later[0] + place]
            line, place, value = line[other], place[other], value[other]
        here, there = value <= limit[line], value <= its_limit[place]
        its.append(key(place[there], value[there], part[0] + line[there]))
        return key(line[here], value[here], later[0] + place[here])


def key(line: np.ndarray, value: np.ndarray | float, column: np.ndarray | int) -> np.ndarray:
    """int64, sorted as (line, value, column) are. Values below 0, which rounding makes, are 0; floats sort as bits."""
    bits = np.maximum(np.asarray(value, np.float32), np.float32(0)).view(np.int32).astype(np.int64)
    return (line << (VALUE_BITS + COLUMN_BITS)) | (bits << COLUMN_BITS) | column


def line_of(keys: np.ndarray) -> np.ndarray:
    """int64: the lines of keys."""
    return keys >> (VALUE_BITS + COLUMN_BITS)


def value_of(keys: np.ndarray) -> np.ndarray:
    """float32: the values of keys."""
    return (keys >> COLUMN_BITS & (1 << VALUE_BITS) - 1).astype(np.int32).view(np.float32)


def column_of(keys: np.ndarray) -> np.ndarray:
    """int64: the columns of keys."""
    return keys & (MOST_ITEMS - 1)


def _product(left: np.ndarray, right: np.ndarray, room: np.ndarray | None = None) -> np.ndarray:
    shape = len(left), len(right)
    out = np.empty(shape, np.float32) if room is None else room[: shape[0] * shape[1]].reshape(shape)
    return np.matmul(left, right.T, out=out)


def _square_norms(x: np.ndarray) -> np.ndarray:
    """float32 (n,), of sums in float64."""
    return np.einsum("nd,nd->n", x, x, dtype=np.float64).astype(np.float32)
