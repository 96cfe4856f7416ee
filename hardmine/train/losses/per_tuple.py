"""Reducing losses that are published as a sum over tuples, and not as a mean over items."""

from __future__ import annotations

from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.train.losses.base import LossOutput, mean_per_item


def sum_over_tuples(
    per_tuple: Tensor, batch: Batch, tuples: Tuples, weight: Tensor | None, divisor: Tensor | int = 1
) -> LossOutput:
    """value = sum_t weight_item(t) loss_t / max(divisor, 1), 0 with a gradient where there are no tuples; per_item: the
    mean over an item's tuples. per_tuple: (T,). weight: (items,) or None for 1. Raises InputError where the weights are
    not as many as the items."""
    item = tuples.item.to(per_tuple.device)
    per_item = mean_per_item(per_tuple.detach(), item, batch.items)
    if weight is not None:
        if weight.shape != per_item.shape:
            raise InputError(f"weight has shape {tuple(weight.shape)} for {batch.items} items")
        per_tuple = per_tuple * weight.detach().to(per_tuple)[item]
    least_one = divisor.clamp(min=1) if isinstance(divisor, Tensor) else max(divisor, 1)
    return LossOutput(per_tuple.sum() / least_one, per_item)
