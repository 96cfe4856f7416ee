"""Dropout whose mask belongs to the place of an item in the batch, however many processes share the batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from hardmine.errors import InputError
from hardmine.train.seeds import mixed

_LEVELS = 1 << 16  # a number of 16 bits decides about each activation


class Masks:
    """The masks of one step. Each call of a dropout layer draws one for the whole batch, from the step's seed and the
    number of the call alone, and takes the part of its own items."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._slots: Tensor | None = None
        self._items = self._calls = 0

    def begin(self, seed: int, items: int, slots: np.ndarray | None) -> None:
        """Start a step. items: of the whole batch. slots: int64, the places of this process's; None for all."""
        self._seed, self._items, self._calls = seed, items, 0
        self._slots = None if slots is None else torch.from_numpy(slots)

    @property
    def begun(self) -> bool:
        """Whether there is a step to draw for."""
        return self._seed is not None

    @torch.compiler.disable
    def factors(self, x: Tensor, p: float) -> Tensor:
        """What activations (n, ...) are multiplied by: 0 with probability p, to 1 / 65536, otherwise what keeps their
        mean. Stored channels last, as the networks here are. Raises InputError where several processes share a batch
        and the layer's rows are not its items."""
        assert self._seed is not None  # `begun` has said so
        rows = self._items if self._slots is not None else len(x)
        if self._slots is not None and len(x) != len(self._slots):
            raise InputError(
                f"a dropout layer acts on {len(x)} rows where this process has {len(self._slots)} items of the batch: "
                "such a network cannot be trained by several processes; set its dropout to 0"
            )
        shape = (rows, *x.shape[2:], *x.shape[1:2])
        count = int(np.prod(shape))
        generator = torch.Generator(x.device).manual_seed(mixed(self._seed, self._calls))
        self._calls += 1
        words = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device)
        drawn = words.random_(-(2**63), None, generator=generator).view(torch.int16)[:count].view(shape)
        if self._slots is not None:
            drawn = drawn[self._slots.to(x.device)]
        dropped = round(p * _LEVELS)
        kept = (drawn >= dropped - _LEVELS // 2).to(x.dtype)
        return kept.mul_(_LEVELS / (_LEVELS - dropped)).movedim(-1, 1)


class PlacedDropout(nn.Dropout):
    """nn.Dropout with masks of `Masks` in training; torch's own where no step has begun."""

    def __init__(self, p: float, masks: Masks):
        super().__init__(p)
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or not self.masks.begun:
            return super().forward(x)
        return x * self.masks.factors(x, self.p)


def place_dropout(network: nn.Module, several: bool) -> Masks:
    """Exchange the dropout layers of `network`, in place, and give what draws their masks. Raises InputError for kinds
    of dropout that `several` processes could not draw alike."""
    masks = Masks()
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Dropout:
                placed = PlacedDropout(layer.p, masks)
                setattr(parent, name, placed.train(layer.training))
            elif several and isinstance(layer, nn.modules.dropout._DropoutNd) and not isinstance(layer, nn.Dropout):
                raise InputError(
                    f"{type(layer).__name__} draws other masks in each process of a training: use nn.Dropout, or "
                    "train with one process"
                )
    return masks
