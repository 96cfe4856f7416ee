"""Indices of pytorch-metric-learning's miners as our tuples, so that our losses are computed on them."""

from __future__ import annotations

import torch
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples


def tuples_from_pml(indices: tuple[Tensor, ...], batch: Batch) -> Tuples:
    """The tuples of an `indices_tuple` over the rows of `batch`, on the device of its descriptors.

    indices: int64 (T,) each: (anchor, positive, negative), taken as they are; or (anchor1, positive, anchor2,
    negative), pairs, of which each positive pair meets each negative pair of the same anchor. Each tuple belongs to its
    anchor's item; items without one are counted as skipped. The other way round, `Tuples.triplets` is what that package
    takes. Raises InputError where they are of another form, or name a row that is not there.
    """
    if len(indices) not in (3, 4):
        raise InputError(
            f"{len(indices)} arrays of indices; expected three (anchor, positive, negative), or four (anchor1, "
            "positive, anchor2, negative)"
        )
    device, rows = batch.descriptors.device, len(batch.descriptors)
    indices = tuple(index.to(device, torch.int64) for index in indices)
    for index in indices:
        if index.dim() != 1:
            raise InputError(f"an array of indices has shape {tuple(index.shape)}; expected (T,)")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < rows:
            raise InputError(f"indices go from {int(index.min())} to {int(index.max())}, and the batch has {rows} rows")
    if len(indices) == 4:
        return Tuples.from_triplets(_joined(*indices), batch)
    anchor, positive, negative = indices
    if not len(anchor) == len(positive) == len(negative):
        raise InputError(f"{len(anchor)} anchors, {len(positive)} positives, {len(negative)} negatives: not triplets")
    return Tuples.from_triplets((anchor, positive, negative), batch)


def _joined(anchor: Tensor, positive: Tensor, other: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every (anchor, positive) with every (other, negative) of the same anchor, in the order of the first."""
    if len(anchor) != len(positive) or len(other) != len(negative):
        raise InputError("an anchor of a pair has no partner: expected as many anchors as positives, and as negatives")
    other, order = other.sort(stable=True)
    negative = negative[order]
    first, stop = torch.searchsorted(other, anchor), torch.searchsorted(other, anchor, right=True)
    count = stop - first
    pair = torch.arange(len(anchor), device=anchor.device).repeat_interleave(count)
    place = torch.arange(len(pair), device=anchor.device) - (count.cumsum(0) - count)[pair]
    return anchor[pair], positive[pair], negative[first[pair] + place]
