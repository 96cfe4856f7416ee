"""What a loss is: from the descriptors of a batch and its tuples to a scalar and a number per pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.miners import Tuples
from hardmine.registry import Registry


@dataclass(frozen=True)
class LossOutput:
    """value: the weighted scalar to call backward on. per_item: (n,) unweighted losses of the pairs, without gradient,
    0 for a pair without a tuple."""

    value: Tensor
    per_item: Tensor


class Loss(Protocol):
    """Construct it with its options as keywords; an unknown or unfit one is an error.

    needs_unit_norm: whether it means something on the unit sphere only.
    """

    needs_unit_norm: ClassVar[bool]

    def __call__(self, descriptors: Tensor, tuples: Tuples, weight: Tensor | None = None) -> LossOutput:
        """descriptors: float (2n, D), anchors then positives. tuples: from a miner over the same rows. weight: (n,) or
        None for 1, taken as constants. value = 1/n sum_i weight_i loss_i over all n pairs, skipped ones included."""
        ...


losses: Registry[type[Loss]] = Registry("loss", "hardmine.train.losses")


def triplet_output(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], descriptors: Tensor, tuples: Tuples, weight: Tensor | None
) -> LossOutput:
    """Apply `loss`, from anchor, positive and negative descriptors (T, D) to (T,), and reduce it as `Loss` says.

    In float32 (float64 for float64 descriptors) also under autocast. Where a pair has several tuples its loss is their
    mean. Without tuples the value is 0 and still has a gradient, which is 0. Raises InputError where the arguments do
    not fit each other.
    """
    if descriptors.dim() != 2 or len(descriptors) % 2:
        raise InputError(f"descriptors have shape {tuple(descriptors.shape)}; expected (2n, D)")
    n = len(descriptors) // 2
    if weight is not None and weight.shape != (n,):
        raise InputError(f"weight has shape {tuple(weight.shape)} for {n} pairs")
    with torch.autocast(descriptors.device.type, enabled=False):
        x = descriptors if descriptors.dtype == torch.float64 else descriptors.float()
        per_tuple = loss(x[tuples.anchor], x[tuples.positive], x[tuples.negative])
        zeros = x.new_zeros(n)
        count = zeros.index_add(0, tuples.item, torch.ones_like(per_tuple))
        per_item = zeros.index_add(0, tuples.item, per_tuple) / count.clamp(min=1)
        weighted = per_item if weight is None else per_item * weight.detach().to(per_item)
        return LossOutput(weighted.sum() / max(n, 1), per_item.detach())
