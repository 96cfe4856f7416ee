"""Margin loss: positives nearer than a boundary, negatives beyond it, the boundary learned for each class.

Wu et al., "Sampling matters in deep embedding learning", ICCV 2017, with a triplet's two pairs as PADS computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from hardmine.errors import InputError, StoreError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.options import Options
from hardmine.train.losses.base import LossOutput, full_precision, losses, require_tuples
from hardmine.train.losses.distances import between
from hardmine.train.losses.per_tuple import sum_over_tuples


@losses.register("margin")
class Margin(Options):
    """sum over tuples of (l+ + l-) / N, l+ = [d(a, p) - beta_c + margin]_+ and l- = [beta_c - d(a, n) + margin]_+ with
    the anchor's class c and d = sqrt(|x - y|^2 + 1e-8), plus nu times the sum over tuples of beta_c.

    beta: at the start (0.6 and 1.2 are used). learn_beta: whether each class learns its own, at learning rate beta_lr
    and without weight decay (`Learnable`; labels are then 0 .. classes - 1); otherwise it is constant. nu: 0 as
    published. divisor (register A6): N is the number of pairs with a loss, #(l+ > 0) + #(l- > 0) ("pairs"), or that of
    tuples with one ("or": what the released code comes to under a present torch); 1 where none has any.
    """

    needs_unit_norm: ClassVar[bool] = False
    needs_tuples: ClassVar[bool] = True
    margin: float = Field(default=0.2, ge=0.0, allow_inf_nan=False)
    beta: float = Field(default=1.2, allow_inf_nan=False)
    learn_beta: bool = True
    beta_lr: float = Field(default=5e-4, ge=0.0, allow_inf_nan=False)
    nu: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    divisor: Literal["pairs", "or"] = "pairs"
    _beta: nn.Parameter | None = PrivateAttr(default=None)

    def __call__(self, batch: Batch, tuples: Tuples | None = None, weight: Tensor | None = None) -> LossOutput:
        """See `Loss`, with N in place of the items' number. per_item is without nu. Raises InputError where betas are
        learned and `start` was not called, or a label is none of its classes."""
        tuples = require_tuples(tuples)
        with torch.autocast(batch.descriptors.device.type, enabled=False):
            x = full_precision(batch.descriptors)
            anchor, positive, negative = (x[rows] for rows in tuples.triplets)
            beta = self._beta_of(batch, tuples).to(x.dtype)
            near = torch.relu(between(anchor, positive, 1e-8) - beta + self.margin)
            far = torch.relu(beta - between(anchor, negative, 1e-8) + self.margin)
            with_loss = (near > 0, far > 0)
            count = (with_loss[0] | with_loss[1]).sum() if self.divisor == "or" else sum(w.sum() for w in with_loss)
            output = sum_over_tuples(near + far, batch, tuples, weight, count)
            if self.nu == 0:
                return output
            return LossOutput(output.value + self.nu * beta.sum(), output.per_item)

    def _beta_of(self, batch: Batch, tuples: Tuples) -> Tensor:
        """beta of each tuple's anchor, (T,)."""
        if not self.learn_beta:
            return torch.full((len(tuples),), self.beta, dtype=torch.float64, device=batch.descriptors.device)
        if self._beta is None:
            raise InputError("the margin loss learns a beta for each class: call start(classes) before the first step")
        labels = batch.labels
        if labels.device.type == "cpu" and len(labels):  # on a GPU they are not read back
            first, last = (int(end) for end in labels.aminmax())
            if first < 0 or last >= self.classes:
                raise InputError(
                    f"labels go from {first} to {last}, and betas are learned for the classes 0 to {self.classes - 1}: "
                    "start the loss with the number of classes, and number labels from 0"
                )
        return self._beta[labels.to(self._beta.device)[tuples.anchor.to(self._beta.device)]]

    @property
    def classes(self) -> int:
        """How many classes have a beta of their own; 0 where it is constant or `start` was not called."""
        return 0 if self._beta is None else len(self._beta)

    def start(self, classes: int, device: torch.device | str = "cpu", dim: int = 0) -> None:
        """See `Learnable.start`; the descriptors' length does not matter."""
        if self.learn_beta:
            self._beta = nn.Parameter(torch.full((classes,), self.beta, device=device))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """See `Learnable.parameter_groups`."""
        if self._beta is None:
            return []
        return [{"params": [self._beta], "lr": self.beta_lr, "weight_decay": 0.0}]

    def state_dict(self) -> dict[str, Tensor]:
        """See `Learnable.state_dict`."""
        return {} if self._beta is None else {"beta": self._beta.detach().clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """See `Learnable.load_state_dict`."""
        saved = len(state["beta"]) if "beta" in state else 0
        if saved != self.classes:
            raise StoreError(f"the saved loss has betas for {saved} classes, this one for {self.classes}")
        if self._beta is not None:
            with torch.no_grad():
                self._beta.copy_(state["beta"])
