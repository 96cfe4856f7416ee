"""A round by hand: descriptors as a test wants them, with the lists a real round would have."""

import numpy as np

from hardmine.store.search import nearest_both


class HandRound:
    """sizes: items of each class. x: (M, D) in class order. stored: K of the stored lists, None for none."""

    number, split = 1, "all"

    def __init__(self, sizes, x, stored=None, first_row=100):
        self.entry_offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.x = np.asarray(x, np.float32)
        self.entry_row = np.arange(first_row, first_row + len(self.x))
        self.entry_view = np.zeros(len(self.x), np.int16)
        self.items = np.arange(len(self.x))
        self.entry_label = np.repeat(np.arange(len(sizes)), sizes)
        self.derived = [] if stored is None else ["knn"]
        if stored is not None:
            self._lists = nearest_both(self.x, self.entry_row, self.entry_label, stored)

    def descriptors(self):
        return self.x

    def knn(self):
        return self._lists[0].rows, self._lists[0].distance

    def knn_other(self):
        return self._lists[1].rows, self._lists[1].distance


def unit(count, dim=8, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def on_a_line(*places):
    """Descriptors (n, 2) at these places of a line: distances are differences."""
    return np.stack([np.array(places), np.zeros(len(places))], 1)
