"""What a loss is: from the descriptors of a batch and its tuples to a scalar and a number per item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.batch import Batch, full_precision
from hardmine.mining.miners import Tuples
from hardmine.registry import Registry


@dataclass(frozen=True)
class LossOutput:
    """value: the weighted scalar to call backward on. per_item: (items,) unweighted losses, without gradient; 0 for an
    item without a tuple. skipped: anchors that a loss on whole batches could do nothing with (those of a miner are
    counted by its tuples). figures: name to scalar for the log, without gradient."""

    value: Tensor
    per_item: Tensor
    skipped: int | Tensor = 0
    figures: dict[str, float | Tensor] = field(default_factory=dict)


class Loss(Protocol):
    """Construct it with its options as keywords; an unknown or unfit one is an error.

    In float32 (float64 for float64 descriptors) also under autocast; the gradient is finite where descriptors coincide.
    """

    @property
    def needs_unit_norm(self) -> bool:
        """Whether it means something on the unit sphere only."""
        ...

    @property
    def needs_tuples(self) -> bool:
        """Whether it is computed on a miner's tuples; otherwise on the whole batch."""
        ...

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """value = 1/items sum_i weight_i loss_i over all items; where no negative (or tuple) was found loss_i is 0.

        tuples: of a miner over the same batch. weight: (items,) or None for 1, taken as constants. Raises InputError
        where tuples are missing or not taken, where the batch has single items and the loss needs pairs, where the
        weights are not as many as the items.
        """
        ...


losses: Registry[type[Loss]] = Registry("loss", "hardmine.train.losses")


def triplet_output(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], batch: Batch, tuples: Tuples | None, weight: Tensor | None
) -> LossOutput:
    """Apply `loss`, from anchor, positive and negative descriptors (T, D) to (T,), and reduce it as `Loss` says.

    Where an item has several tuples its loss is their mean. Without tuples the value is 0 and still has a gradient,
    which is 0. Raises InputError where the arguments do not fit each other.
    """
    tuples = require_tuples(tuples)
    with torch.autocast(batch.descriptors.device.type, enabled=False):
        x = full_precision(batch.descriptors)
        per_tuple = loss(x[tuples.anchor], x[tuples.positive], x[tuples.negative])
        return weighted_mean(mean_per_item(per_tuple, tuples.item, batch.items), weight)


def mean_per_item(per_tuple: Tensor, item: Tensor, items: int) -> Tensor:
    """The mean over each item's tuples, (items,), 0 for one without. per_tuple: (T,). item: int64 (T,)."""
    zeros = per_tuple.new_zeros(items)
    count = zeros.index_add(0, item, torch.ones_like(per_tuple))
    return zeros.index_add(0, item, per_tuple) / count.clamp(min=1)


def require_tuples(tuples: Tuples | None) -> Tuples:
    """The tuples. Raises InputError where there are none given."""
    if tuples is None:
        raise InputError("this loss is computed on tuples: give it those of a miner")
    return tuples


def refuse_tuples(tuples: Tuples | None) -> None:
    """Raises InputError where there are tuples."""
    if tuples is not None:
        raise InputError("this loss is computed on the whole batch and takes no tuples")


def whole_batch_output(
    loss: Callable[[Batch], Tensor], batch: Batch, tuples: Tuples | None, weight: Tensor | None
) -> LossOutput:
    """Apply `loss`, from a batch of full precision to (items,), and reduce it as `Loss` says. Raises InputError where
    there are tuples, which it does not take."""
    refuse_tuples(tuples)
    with torch.autocast(batch.descriptors.device.type, enabled=False):
        exact = full_precision(batch.descriptors)
        return weighted_mean(loss(replace(batch, descriptors=exact)), weight)


def weighted_mean(per_item: Tensor, weight: Tensor | None) -> LossOutput:
    """The output of a loss that is `per_item` (items,). Raises InputError where the weights are not as many."""
    if weight is not None and weight.shape != per_item.shape:
        raise InputError(f"weight has shape {tuple(weight.shape)} for {len(per_item)} items")
    weighted = per_item if weight is None else per_item * weight.detach().to(per_item)
    return LossOutput(weighted.sum() / max(len(per_item), 1), per_item.detach())
