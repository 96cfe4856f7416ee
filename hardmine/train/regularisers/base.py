"""What a regulariser is: from the descriptors of a batch to a scalar that is added to the loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.registry import Registry


@dataclass(frozen=True)
class Penalty:
    """value: the scalar to add, its factor included. figures: name to scalar tensor for the log, without gradient."""

    value: Tensor
    figures: dict[str, Tensor] = field(default_factory=dict)


class Regulariser(Protocol):
    """Construct it with its options as keywords; an unknown or unfit one is an error."""

    @property
    def needs_drawn(self) -> bool:
        """Whether it takes the negatives that the plan drew."""
        ...

    @property
    def needs_unit_norm(self) -> bool:
        """Whether it means something on the unit sphere only."""
        ...

    def __call__(self, batch: Batch) -> Penalty:
        """The penalty of a batch. Raises InputError where the batch does not have what it needs."""
        ...


regularisers: Registry[type[Regulariser]] = Registry("regulariser", "hardmine.train.regularisers")
