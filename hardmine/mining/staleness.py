"""How far the weights have moved on from a round: its age, and the share of its hard negatives that are still hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.store.distances import as_tensor, listed_distances
from hardmine.store.rounds import Round
from hardmine.store.search import nearest

ANCHORS = 256
NEGATIVES = 8
WIDER = 4

Embed = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (rows, views) of n entries -> descriptors float32 (n, D)


@dataclass(frozen=True)
class Staleness:
    """age: training steps since the round was mined. still_hard: see `staleness`; None where no sampled anchor has
    `wider * negatives` items of other classes. anchors: how many were looked at."""

    age: int
    still_hard: float | None
    anchors: int

    def scalars(self) -> dict[str, float]:
        """For the log."""
        figures = {"round_age": float(self.age)}
        return figures if self.still_hard is None else figures | {"round_still_hard": self.still_hard}


def staleness(
    source: Round,
    embed: Embed,
    age: int,
    *,
    anchors: int = ANCHORS,
    negatives: int = NEGATIVES,
    wider: int = WIDER,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Staleness:
    """Measure a round against present weights.

    A seeded sample of items are anchors. The `wider * negatives` items of other classes that were nearest to an anchor
    when the round was mined are its candidates, the first `negatives` of them its mined negatives. Anchors and
    candidates are embedded anew, and the candidates sorted anew by (distance, row). still_hard is the share of mined
    negatives that are among the first `negatives` again: 1 for unchanged weights, 1 / wider where the order among the
    candidates is lost altogether. At most anchors * (1 + wider * negatives) items are embedded, each once.

    embed: the present network. age: steps since the mining. Raises InputError for counts below 1 or wider below 2.
    """
    if anchors < 1 or negatives < 1 or wider < 2:
        raise InputError(f"anchors {anchors}, negatives {negatives}, wider {wider}: at least 1, 1 and 2")
    items = source.items
    rows, labels = source.entry_row[items], source.entry_label[items]
    x = source.descriptors()[items]
    rng = np.random.Generator(np.random.Philox(seed))
    sample = np.sort(rng.choice(len(items), min(anchors, len(items)), replace=False))
    near = nearest(
        x,
        rows,
        wider * negatives,
        queries=x[sample],
        query_rows=rows[sample],
        labels=labels,
        query_labels=labels[sample],
        device=device,
    ).rows
    full = near[:, -1] >= 0
    near, own = near[full], rows[sample[full]]
    if not len(own):
        return Staleness(age, None, 0)
    needed, place = np.unique(np.concatenate([own, near.reshape(-1)]), return_inverse=True)
    y = as_tensor(embed(needed, np.zeros(len(needed), np.int16)))
    first, second = as_tensor(place[: len(own)].repeat(near.shape[1])), as_tensor(place[len(own) :])
    distance = listed_distances(y, first, y, second).numpy().reshape(near.shape)
    order = np.lexsort((near, distance), axis=-1)
    return Staleness(age, float((order[:, :negatives] < negatives).mean()), len(own))
