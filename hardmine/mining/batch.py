"""A batch of descriptors, as miners choose from it and losses and regularisers are computed on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hardmine.errors import InputError


@dataclass(frozen=True, eq=False)
class Batch:
    """The descriptors of a training step with what is known about them.

    descriptors: float (m, D), any norm. labels: int64 (m,). pairs: n where the rows are pairs: row i is an anchor, row
    n + i its positive, and row 2n + i, where m is 3n, a negative drawn for it at random; None where the rows are single
    items of classes with one or more of them. not_negative: bool (n, n), True where nothing of pair j is a negative for
    pair i, beyond those of the same label (classes that overlap in one image, say). generator: for what draws.

    Raises InputError where these do not fit each other. Labels on a GPU are not read back to compare a pair's two.
    """

    descriptors: Tensor
    labels: Tensor
    pairs: int | None = None
    not_negative: Tensor | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        rows, n = len(self.descriptors), self.pairs
        if self.descriptors.dim() != 2:
            raise InputError(f"descriptors have shape {tuple(self.descriptors.shape)}; expected (m, D)")
        if self.labels.shape != (rows,):
            raise InputError(f"labels have shape {tuple(self.labels.shape)} for {rows} descriptors")
        if n is None:
            if self.not_negative is not None:
                raise InputError("not_negative is about pairs, and this batch has none")
            return
        if rows not in (2 * n, 3 * n):
            raise InputError(
                f"{rows} descriptors for {n} pairs; expected {n} anchors, then their {n} positives, then, if there are "
                f"any, their {n} drawn negatives"
            )
        if self.labels.device.type == "cpu" and not torch.equal(self.labels[:n], self.labels[n : 2 * n]):
            i = int(torch.nonzero(self.labels[:n] != self.labels[n : 2 * n])[0])
            first, second = int(self.labels[i]), int(self.labels[n + i])
            raise InputError(f"pair {i} joins labels {first} and {second}; a pair is of one class")
        mask = self.not_negative
        if mask is not None and (mask.shape != (n, n) or mask.dtype != torch.bool):
            raise InputError(f"not_negative is {mask.dtype} of shape {tuple(mask.shape)}; expected bool ({n}, {n})")

    @classmethod
    def of_pairs(
        cls,
        descriptors: Tensor,
        labels: Tensor,
        not_negative: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """A batch of m / 2 pairs without drawn negatives: anchors, then positives."""
        if len(descriptors) % 2:
            raise InputError(f"{len(descriptors)} descriptors are no pairs: expected n anchors, then their n positives")
        return cls(descriptors, labels, len(descriptors) // 2, not_negative, generator)

    @property
    def items(self) -> int:
        """How many things have a loss of their own: the pairs, or the rows where there are none."""
        return len(self.descriptors) if self.pairs is None else self.pairs

    @property
    def has_drawn(self) -> bool:
        """Whether there is a drawn negative for each pair."""
        return self.pairs is not None and len(self.descriptors) == 3 * self.pairs

    def parts(self) -> tuple[Tensor, Tensor]:
        """(anchors, positives), float (n, D) each. Raises InputError where the rows are no pairs."""
        if self.pairs is None:
            raise InputError("this needs a batch of pairs (anchors, then their positives); it has single items")
        return self.descriptors[: self.pairs], self.descriptors[self.pairs : 2 * self.pairs]

    def drawn(self) -> Tensor:
        """The drawn negatives, float (n, D). Raises InputError where there are none."""
        if not self.has_drawn:
            raise InputError("this needs a drawn negative for each pair; the batch has none")
        return self.descriptors[2 * self.items :]

    def excluded(self) -> Tensor:
        """bool (n, n) on the descriptors' device: True where pair j gives no negative for pair i."""
        self.parts()
        same = _alike(self.labels[: self.pairs].to(self.descriptors.device))
        return same if self.not_negative is None else same | self.not_negative.to(same.device)

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """All rows as single items, without the drawn negatives: (descriptors (m', D), positive, negative), the last
        two bool (m', m') on the descriptors' device: which rows are of one class (a row itself is, too), and which are
        negatives of each other. Of what is `not_negative` a row is neither."""
        m = len(self.descriptors) if self.pairs is None else 2 * self.pairs
        positive = _alike(self.labels[:m].to(self.descriptors.device))
        if self.not_negative is None:
            return self.descriptors[:m], positive, ~positive
        return self.descriptors[:m], positive, ~(positive | self.not_negative.to(positive.device).repeat(2, 2))


def full_precision(x: Tensor) -> Tensor:
    """What is computed on: x in float32, or in float64 where it is that already."""
    return x if x.dtype == torch.float64 else x.float()


def _alike(labels: Tensor) -> Tensor:
    return labels[:, None] == labels[None, :]
