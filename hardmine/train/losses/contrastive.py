"""Contrastive loss with a margin on either side, and its form in which GOR takes the place of the negatives.

Zhang et al., "Learning Spread-out Local Feature Descriptors", ICCV 2017, Eq. 1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, losses, mean_per_item, triplet_output, whole_batch_output
from hardmine.train.losses.distances import between

_EPSILON = 1e-6  # under the root, as in GOR's program


@losses.register("contrastive")
class Contrastive(Options):
    """[d(a, p) - eps_pos]_+ + [eps_neg - d(a, n)]_+ with d = sqrt(|x - y|^2 + 1e-6): an item is a matching and a
    non-matching pair.

    negatives: "mined", those of the miner's tuples (GOR's own contrastive loss is on random ones: miner `drawn`, for
    single items `random`); "none", without the second term, for which the paper's CL + GOR has the regulariser `gor`
    instead: it takes no miner. A single item is then the mean of the first term over the others of its class.

    eps_pos: 0.7 in the paper. eps_neg: not in the paper; 1.41, the distance of orthogonal directions, is what the
    released program lists for random negatives and does not use.
    """

    needs_unit_norm: ClassVar[bool] = False
    eps_pos: float = Field(default=0.7, ge=0.0, allow_inf_nan=False)
    eps_neg: float = Field(default=1.41, ge=0.0, allow_inf_nan=False)
    negatives: Literal["mined", "none"] = "mined"

    @model_validator(mode="after")
    def _no_margin_without_negatives(self) -> Contrastive:
        if self.negatives == "none" and "eps_neg" in self.model_fields_set:
            raise ValueError('eps_neg is the margin of the negatives, and negatives = "none" has none')
        return self

    @property
    def needs_tuples(self) -> bool:
        """See `Loss`."""
        return self.negatives == "mined"

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`."""
        if self.needs_tuples:
            return triplet_output(self._loss, batch, tuples, weight)
        return whole_batch_output(self._positives, batch, tuples, weight)

    def _positives(self, batch: Batch) -> Tensor:
        """The first term of each item of a batch, (items,)."""
        if batch.pairs is not None:
            return self._matching(*batch.parts())
        x, same, _ = batch.rows()
        anchor, positive = torch.nonzero(same.clone().fill_diagonal_(False), as_tuple=True)
        return mean_per_item(self._matching(x[anchor], x[positive]), anchor, batch.items)

    def _loss(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return self._matching(anchor, positive) + torch.relu(self.eps_neg - between(anchor, negative, _EPSILON))

    def _matching(self, anchor: Tensor, positive: Tensor) -> Tensor:
        return torch.relu(between(anchor, positive, _EPSILON) - self.eps_pos)
