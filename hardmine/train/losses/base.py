"""What a loss is: from the descriptors of a batch and its tuples to a scalar and a number per item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.registry import Registry


@dataclass(frozen=True)
class LossOutput:
    """value: the weighted scalar to call backward on. per_item: (items,) unweighted losses, without gradient; 0 for an
    item without a tuple."""

    value: Tensor
    per_item: Tensor


class Loss(Protocol):
    """Construct it with its options as keywords; an unknown or unfit one is an error.

    needs_unit_norm: whether it means something on the unit sphere only. needs_tuples: whether it is computed on a
    miner's tuples; otherwise on the whole batch, and `tuples` is None.
    """

    needs_unit_norm: ClassVar[bool]
    needs_tuples: ClassVar[bool]

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """tuples: of a miner over the same batch. weight: (items,) or None for 1, taken as constants.
        value = 1/items sum_i weight_i loss_i over all items, skipped ones included."""
        ...


losses: Registry[type[Loss]] = Registry("loss", "hardmine.train.losses")


def triplet_output(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], batch: Batch, tuples: Tuples | None, weight: Tensor | None
) -> LossOutput:
    """Apply `loss`, from anchor, positive and negative descriptors (T, D) to (T,), and reduce it as `Loss` says.

    In float32 (float64 for float64 descriptors) also under autocast. Where an item has several tuples its loss is their
    mean. Without tuples the value is 0 and still has a gradient, which is 0. Raises InputError where the arguments do
    not fit each other.
    """
    if tuples is None:
        raise InputError("this loss is computed on tuples: give it those of a miner")
    with torch.autocast(batch.descriptors.device.type, enabled=False):
        x = full_precision(batch.descriptors)
        per_tuple = loss(x[tuples.anchor], x[tuples.positive], x[tuples.negative])
        zeros = x.new_zeros(batch.items)
        count = zeros.index_add(0, tuples.item, torch.ones_like(per_tuple))
        return weighted_mean(zeros.index_add(0, tuples.item, per_tuple) / count.clamp(min=1), weight)


def weighted_mean(per_item: Tensor, weight: Tensor | None) -> LossOutput:
    """The output of a loss that is `per_item` (items,). Raises InputError where the weights are not as many."""
    if weight is not None and weight.shape != per_item.shape:
        raise InputError(f"weight has shape {tuple(weight.shape)} for {len(per_item)} items")
    weighted = per_item if weight is None else per_item * weight.detach().to(per_item)
    return LossOutput(weighted.sum() / max(len(per_item), 1), per_item.detach())


def full_precision(x: Tensor) -> Tensor:
    """float32, or float64 where it is that already."""
    return x if x.dtype == torch.float64 else x.float()
