"""GOR, the global orthogonal regulariser: descriptors of different spots are spread out like random directions.

Zhang et al., "Learning Spread-out Local Feature Descriptors", ICCV 2017. For two independent, uniform directions of
the unit sphere in d dimensions E[x . y] = 0 and E[(x . y)^2] = 1/d.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.batch import Batch, full_precision
from hardmine.mining.draws import draw_even
from hardmine.options import Options
from hardmine.train.regularisers.base import Penalty, regularisers


@regularisers.register("gor")
class GlobalOrthogonal(Options):
    """alpha (M1^2 + [M2 - 1/d]_+) with M1 = mean_i a_i . n_i and M2 = mean_i (a_i . n_i)^2 over non-matching pairs.

    alpha: 1 in the paper; it multiplies both terms (register A10). second: the term of M2, "hinge" (the paper's), "l1"
    |M2 - 1/d| or "l2" (M2 - 1/d)^2. moment: M2 over "anchors", as above and in the paper, or the mean of the "larger"
    of (a_i . n_i)^2 and (p_i . n_i)^2, as in the released program, which takes pairs.

    negatives: where n_i comes from. "drawn": a random patch of another class that the plan drew for each pair, as
    published for patches; it costs half as many forward passes again, and single items have none. The others take what
    the batch holds, of pairs the positives, of single items (images) all rows: "random", for each anchor one that is a
    non-match, drawn evenly from the batch's generator: the paper's random non-matching pairs, one for each image;
    "batch" (ours), the next one that is a non-match, nothing drawn; "all" (ours), every one: the means are over all
    non-matching pairs of the batch, with less noise at the same cost.
    """

    needs_unit_norm: ClassVar[bool] = True
    alpha: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    second: Literal["hinge", "l1", "l2"] = "hinge"
    moment: Literal["anchors", "larger"] = "anchors"
    negatives: Literal["drawn", "random", "batch", "all"] = "drawn"

    @property
    def needs_drawn(self) -> bool:
        """See `Regulariser`."""
        return self.negatives == "drawn"

    def __call__(self, batch: Batch) -> Penalty:
        """See `Regulariser`. The figures are M1 and M2; a batch without a non-match gives 0 for all three. Raises
        InputError where single items are to have drawn negatives or a "larger" moment, and where the generator of
        "random" is not on the CPU."""
        with torch.autocast(batch.descriptors.device.type, enabled=False):
            similarity, squared, there = self._products(batch, full_precision(batch.descriptors))
            count = there.sum()
            m1, m2 = ((value * there).sum() / count.clamp(min=1) for value in (similarity, squared))
            excess = m2 - 1 / batch.descriptors.shape[1]
            second = {"hinge": torch.relu, "l1": torch.abs, "l2": torch.square}[self.second](excess)
            penalty = self.alpha * (m1.square() + second) * (count > 0)
            return Penalty(penalty, {"m1": m1.detach(), "m2": m2.detach()})

    def _products(self, batch: Batch, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(a_i . n_i, what M2 is the mean of, bool: whether there is such a pair): (n,) each, (n, n) for "all"."""
        n = batch.items
        if batch.pairs is None and (self.needs_drawn or self.moment == "larger"):
            option = 'negatives = "drawn"' if self.needs_drawn else 'moment = "larger"'
            raise InputError(
                f"gor: {option} needs a batch of pairs (anchors, then their positives), and this one has single items: "
                'give negatives = "random", "batch" or "all" and moment = "anchors"'
            )
        anchors = x[:n]
        ends = [anchors] if self.moment == "anchors" else [anchors, x[n : 2 * n]]
        others, there = self._others(batch, x)
        if self.negatives == "all":
            products = [end @ others.T for end in ends]
        else:
            products = [(end * others).sum(1) for end in ends]
        squared = [product.square() for product in products]
        return products[0], squared[0] if len(squared) == 1 else torch.maximum(*squared), there

    def _others(self, batch: Batch, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n_i, float (n, D); bool (n,): whether there is one for i). For "all": (all that may be one, float (n, D);
        bool (n, n): which is one for i)."""
        n = batch.items
        if self.negatives == "drawn":
            batch.drawn()  # says what is missing
            return x[2 * n :], torch.ones(n, dtype=torch.bool, device=x.device)
        candidates, allowed = (x, batch.rows()[2]) if batch.pairs is None else (x[n : 2 * n], ~batch.excluded())
        if self.negatives == "all":
            return candidates, allowed
        if self.negatives == "random":
            drawn = draw_even(allowed, batch.generator)
            return candidates[drawn.clamp(min=0)], drawn >= 0
        # the first allowed one after i, going round: line i rolled so that i + 1 comes first
        step = torch.arange(n, device=allowed.device)
        column = (step[:, None] + step + 1) % max(n, 1)
        first = allowed.gather(1, column).int().argmax(1, keepdim=True) if n else column
        return candidates[column.gather(1, first).reshape(-1)], allowed.any(1)
