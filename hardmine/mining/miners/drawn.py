"""Random triplets: each pair with the negative that the sampler drew for it, as TFeat and GOR are trained.

Balntas et al., "Learning local feature descriptors with triplets and shallow convolutional neural networks", BMVC 2016.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from hardmine.mining.batch import Batch, full_precision
from hardmine.mining.miners.base import Tuples, miners
from hardmine.options import Options


@miners.register("drawn")
class Drawn(Options):
    """One tuple per pair. swap: TFeat's anchor swap: where the negative is nearer to the positive than to the anchor,
    the two change places, so that the distance to the negative is min(d(a, n), d(p, n)); on equality they stay."""

    needs_drawn: ClassVar[bool] = True
    swap: bool = False

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tuples:
        """See `Miner`. Raises InputError where the batch has no drawn negatives."""
        anchors, positives = batch.parts()
        drawn, n = batch.drawn(), batch.items
        item = torch.arange(n, device=drawn.device)
        swapped = torch.zeros(n, dtype=torch.bool, device=drawn.device)
        if self.swap:
            swapped = _squared(positives, drawn) < _squared(anchors, drawn)
        anchor, positive = torch.where(swapped, item + n, item), torch.where(swapped, item, item + n)
        return Tuples(anchor, positive, item + 2 * n, item)


def _squared(x: Tensor, y: Tensor) -> Tensor:
    return (full_precision(x) - full_precision(y)).square().sum(1)
