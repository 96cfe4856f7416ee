"""What the four losses of DSDML share: the selection of pairs, and the dynamic terms that sharpen over a training.

"Dynamic Sampling for Deep Metric Learning" and its released program (specs 6.1, 6.2; register A12, A13, A17, A19).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.batch import Batch, full_precision
from hardmine.mining.miners import Tuples
from hardmine.mining.staged import Elapsed
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, refuse_tuples, weighted_mean


@dataclass(frozen=True)
class Pairs:
    """What a loss sees of a batch. similarity: float (m, k), the cosine of anchor i and row j. negative: bool (m, k),
    which of them count as negatives. p: float (m, P), the similarities of each anchor's positives, padded. positive:
    bool (m, P), which of those count. all_positives: int64 (m,), an anchor's positives before the selection."""

    similarity: Tensor
    negative: Tensor
    p: Tensor
    positive: Tensor
    all_positives: Tensor

    @classmethod
    def of(cls, similarity: Tensor, positive: Tensor, negative: Tensor) -> Pairs:
        """All pairs of two masks, bool (m, k). There are few positives: listed, they cost next to nothing."""
        row, column = torch.nonzero(positive, as_tuple=True)  # anchor by anchor
        size = torch.bincount(row, minlength=len(positive))
        place = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]
        table = torch.zeros((len(positive), max(1, int(size.max()))), dtype=torch.int64, device=row.device)
        table[row, place] = column
        listed = torch.arange(table.shape[1], device=row.device) < size[:, None]
        return cls(similarity, negative, similarity.gather(1, table), listed, size)


class DynamicSampling(Options):
    """A loss on all rows of a batch as anchors, with s_ij = x_i . x_j of unit descriptors, over the positives P_i (rows
    of the anchor's class; the anchor itself is left out by its number) and the negatives N_i:

        1/m sum_i loss_i,    loss_i = 0 where P_i or N_i is empty (m stays the number of rows)

    select ("+T" in the paper): P_i is narrowed to s < tau_p, then N_i to s > tau_n and s + tau_b > min of P_i. The
    paper gives tau_b no value; 0.5 is the program's. dynamic ("+W"): omega (tau_p - s)^2 is added to a positive's term
    and omega (s - tau_n)^2 to a negative's, with omega = 2 E_c / E_t from the epoch and the number of epochs. Both: the
    paper's starred losses. None: the loss as it was before.

    epoch: "class-pass", as many batches as a pass over all classes has (the program), or "batch", each batch (as the
    paper's text reads). first_epoch: E_c of the first epoch, 1 (paper) or 0 (program). E_t: the epochs of the whole
    run, a begun one counts.

    In a batch of pairs every row is an anchor, and an item's loss is the mean of its two rows'; drawn negatives are not
    looked at. Memory: a few matrices of m x m.
    """

    needs_unit_norm: ClassVar[bool] = True
    needs_tuples: ClassVar[bool] = False
    select: bool = False
    dynamic: bool = False
    tau_p: float = Field(default=0.9, ge=-1.0, le=1.0)
    tau_n: float = Field(default=0.1, ge=-1.0, le=1.0)
    tau_b: float = Field(default=0.5, ge=0.0, allow_inf_nan=False)
    epoch: Literal["class-pass", "batch"] = "class-pass"
    first_epoch: Literal[0, 1] = 1
    _elapsed: Elapsed | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _nothing_is_without_effect(self) -> DynamicSampling:
        needed = {
            "select": (self.select, {"tau_b"}),
            "dynamic": (self.dynamic, {"epoch", "first_epoch"}),
            "select or dynamic": (self.select or self.dynamic, {"tau_p", "tau_n"}),
        }
        for switch, (on, names) in needed.items():
            idle = sorted(names & self.model_fields_set)
            if idle and not on:
                raise ValueError(f"{idle[0]} has no effect without {switch} = true")
        return self

    def advance(self, elapsed: Elapsed) -> None:
        """See `Staged.advance`."""
        self._elapsed = elapsed

    @property
    def omega(self) -> float:
        """2 E_c / E_t, and 0 without `dynamic`. Raises InputError where it was never told how far the run is."""
        if not self.dynamic:
            return 0.0
        if self._elapsed is None:
            raise InputError(
                "the dynamic terms depend on the epoch: call advance(Elapsed(step, steps, steps_per_pass)) before each "
                "step (`train` does)"
            )
        step = min(self._elapsed.step, self._elapsed.steps - 1)  # at the end it is that of the last step
        return 2 * (step // self._per_epoch(self._elapsed) + self.first_epoch) / self.epochs

    @property
    def epochs(self) -> int:
        """E_t; 0 before the first `advance`."""
        if self._elapsed is None:
            return 0
        return -(-self._elapsed.steps // self._per_epoch(self._elapsed))

    def _per_epoch(self, elapsed: Elapsed) -> int:
        return elapsed.steps_per_pass if self.epoch == "class-pass" else 1

    def facts(self) -> dict[str, Any]:
        """What a run's result says of the dynamic terms; nothing without them."""
        if not self.dynamic:
            return {}
        return {"epoch": self.epoch, "epochs": self.epochs, "first_epoch": self.first_epoch, "last_omega": self.omega}

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`. skipped: rows without a positive or a negative left. figures: omega."""
        refuse_tuples(tuples)
        with torch.autocast(batch.descriptors.device.type, enabled=False):
            x, positive, negative = replace(batch, descriptors=full_precision(batch.descriptors)).rows()
            per_row, has_loss = self.per_row(x @ x.T, positive.fill_diagonal_(False), negative)
            per_item = per_row if batch.pairs is None else per_row.view(2, batch.pairs).mean(0)
            output = weighted_mean(per_item, weight)
        figures: dict[str, float | Tensor] = {"omega": self.omega} if self.dynamic else {}
        return replace(output, skipped=(~has_loss).sum(), figures=figures)

    def per_row(
        self, similarity: Tensor, positive: Tensor, negative: Tensor, omega: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """(the loss of each anchor (m,), whether it has one, bool (m,)) from similarities (m, k) and the masks of all
        its positives and negatives, bool (m, k). omega: None is the epoch's."""
        if not similarity.numel():
            return similarity.sum(1), positive.any(1)
        chosen = self.narrow(Pairs.of(similarity, positive, negative))
        has_loss = chosen.positive.any(1) & chosen.negative.any(1)
        return torch.where(has_loss, self.loss(chosen, self.omega if omega is None else omega), 0), has_loss

    def narrow(self, pairs: Pairs) -> Pairs:
        """The pairs that count, of all there are. What is NaN counts, so that the loss shows it."""
        if not self.select:
            return pairs
        positive = pairs.positive & ~(pairs.p.detach() >= self.tau_p)
        least = pairs.p.detach().masked_fill(~positive, torch.inf).amin(1, keepdim=True)
        floor = (least - self.tau_b).clamp(min=self.tau_n)
        return replace(pairs, positive=positive, negative=pairs.negative & ~(pairs.similarity.detach() <= floor))

    def near(self, p: Tensor, omega: float) -> Tensor:
        """omega (tau_p - p)^2."""
        return omega * (self.tau_p - p).square()

    def far(self, s: Tensor, omega: float) -> Tensor:
        """omega (s - tau_n)^2."""
        return omega * (s - self.tau_n).square()

    def loss(self, pairs: Pairs, omega: float) -> Tensor:
        """loss_i of each anchor, (m,), finite with a finite gradient also where it has no positive or no negative."""
        raise NotImplementedError(f"{type(self).__name__} does not say what an anchor's loss is")


def log_sum(exponent: Tensor, mask: Tensor, more: float = 0.0) -> Tensor:
    """log(more + sum_j e^x_ij) over the j of the mask, (m,) of (m, k); very low, and not -inf, where that is log 0, so
    that gradients stay finite. One exponential of each number, forward and backward together."""
    masked = exponent.masked_fill(~mask, -torch.inf)
    lowest = 0.0 if more else torch.finfo(exponent.dtype).min / 2
    top = masked.detach().amax(1, keepdim=True).clamp(min=lowest)
    total = (masked - top).exp().sum(1)
    top = top.squeeze(1)
    if more:
        total = total + more * (-top).exp()
    return top + total.clamp(min=torch.finfo(exponent.dtype).tiny).log()
