"""Random triplets: drawn evenly from all valid triplets of the batch, as many as it has rows.

The baseline `random` of Roth et al., "PADS: policy-adapted sampling for visual similarity learning", CVPR 2020.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.draws import require_cpu
from hardmine.mining.miners.base import Tuples, miners
from hardmine.mining.relations import Relations
from hardmine.options import Options

_DENSE = 8  # a permutation of all triplets where there are at most this many times those asked for


@miners.register("random")
class RandomTriplets(Options):
    """Triplets drawn without repetition, each valid one (label(a) = label(p) != label(n), a != p) as likely as another:
    an anchor may have several or none. triplets: how many for each row of the batch (1 as published; all valid ones
    where there are fewer). They are numbered, and not listed, so that memory stays that of the batch's tables.
    """

    needs_drawn: ClassVar[bool] = False
    triplets: float = Field(1.0, gt=0, allow_inf_nan=False)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tuples:
        """See `Miner`. Skipped are the items that no valid triplet starts at, not those that were not drawn."""
        relations = Relations(batch)
        positives, negatives = relations.positive.sum(1), relations.negative.sum(1)
        count = positives * negatives  # of valid triplets, by anchor
        last = count.cumsum(0)
        total = int(last[-1]) if len(last) else 0
        number = _distinct(total, round(self.triplets * len(relations)), batch.generator).to(last.device)

        anchor = torch.searchsorted(last, number, right=True)
        within = number - (last - count)[anchor]
        positive = _true_columns(relations.positive)[anchor, within // negatives[anchor]]
        negative = _true_columns(relations.negative)[anchor, within % negatives[anchor]]
        item = anchor if batch.pairs is None else anchor % batch.pairs
        with_triplet = torch.nonzero(count).squeeze(1)
        items = with_triplet if batch.pairs is None else torch.unique(with_triplet % batch.pairs)
        return Tuples(anchor, positive, negative, item, skipped=batch.items - len(items))


def _distinct(total: int, wanted: int, generator: torch.Generator | None) -> Tensor:
    """min(wanted, total) different numbers below `total`, every set and order as likely as another. int64, on the CPU.

    Of independent even draws the first so many different ones are such a choice."""
    require_cpu(generator)
    if total <= _DENSE * wanted:
        return torch.randperm(total, generator=generator)[:wanted]
    seen = torch.zeros(0, dtype=torch.int64)
    while True:
        seen = torch.cat([seen, torch.randint(total, (wanted,), generator=generator)])
        _, inverse = torch.unique(seen, return_inverse=True)
        place = torch.arange(len(seen))
        first = torch.full((len(seen),), len(seen)).scatter_reduce(0, inverse, place, "amin")
        different = seen[first[inverse] == place]
        if len(different) >= wanted:
            return different[:wanted]


def _true_columns(mask: Tensor) -> Tensor:
    """int64, shaped as mask (r, r): in each line the columns that are True, ascending, then the others."""
    return (~mask).to(torch.uint8).argsort(dim=1, stable=True)
