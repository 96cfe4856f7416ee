"""What a run descends: a loss on a miner's tuples or on whole batches, plus its regularisers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import Miner, miners
from hardmine.mining.staged import Elapsed, Staged
from hardmine.options import check
from hardmine.train.losses import Loss, LossOutput, losses
from hardmine.train.losses.dynamic_sampling import DynamicSampling
from hardmine.train.losses.learnable import Learnable
from hardmine.train.losses.pml import PmlLoss
from hardmine.train.networks import Network
from hardmine.train.recipe import Named, Recipe
from hardmine.train.regularisers import Regulariser, regularisers

DEFAULT_MINER = Named(name="hardest-in-batch")


@dataclass(frozen=True)
class Objective:
    """miner: None for a loss that is computed on the whole batch. regularisers: by name."""

    loss: Loss
    miner: Miner | None
    regularisers: dict[str, Regulariser] = field(default_factory=dict)

    @property
    def needs_drawn(self) -> bool:
        """Whether plans must draw a random negative for each pair."""
        mined = self.miner is not None and self.miner.needs_drawn
        return mined or any(regulariser.needs_drawn for regulariser in self.regularisers.values())

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Optimiser groups of what the loss learns itself."""
        return self.loss.parameter_groups() if isinstance(self.loss, Learnable) else []

    def advance(self, elapsed: Elapsed) -> None:
        """Tell a miner and a loss that change over a run how far it is."""
        for part in (self.miner, self.loss):
            if isinstance(part, Staged):
                part.advance(elapsed)

    def facts(self) -> dict[str, Any]:
        """What the result of a run says of it beyond the recipe."""
        return {"dynamic": self.loss.facts()} if isinstance(self.loss, DynamicSampling) and self.loss.dynamic else {}

    def state(self) -> dict[str, Tensor]:
        """What the loss has learned, for a checkpoint."""
        return self.loss.state_dict() if isinstance(self.loss, Learnable) else {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a `state`."""
        if isinstance(self.loss, Learnable):
            self.loss.load_state_dict(state)

    def __call__(
        self, batch: Batch, weight: Tensor | None = None
    ) -> tuple[Tensor, LossOutput, int | Tensor, dict[str, float | Tensor]]:
        """(the scalar to descend, the loss without the regularisers, skipped items, figures for the log: the loss' and
        the regularisers')."""
        tuples = None if self.miner is None else self.miner(batch)
        output = self.loss(batch, tuples, weight)
        total = output.value
        figures: dict[str, float | Tensor] = {f"loss/{key}": value for key, value in output.figures.items()}
        for name, regulariser in self.regularisers.items():
            penalty = regulariser(batch)
            total = total + penalty.value
            figures |= {f"{name}/{key}": value for key, value in penalty.figures.items()}
        return total, output, output.skipped if tuples is None else tuples.skipped, figures


def build_objective(
    recipe: Recipe, network: Network, classes: int = 0, device: torch.device | str = "cpu"
) -> Objective:
    """The objective of a recipe. classes: number of labels, for a loss that learns something for each. Raises
    UnknownNameError, InputError: a part with unfit options, one that needs unit descriptors with a network that gives
    others, a miner beside a loss that takes no tuples."""
    loss = check(losses.get(recipe.loss.name), recipe.loss.options, f"loss {recipe.loss.name!r}")
    added = {
        name: check(regularisers.get(name), options, f"regulariser {name!r}")
        for name, options in sorted(recipe.regularisers.items())
    }
    needy = [f"loss {recipe.loss.name!r}"] * loss.needs_unit_norm
    needy += [f"regulariser {name!r}" for name, part in added.items() if part.needs_unit_norm]
    if needy and not network.unit_norm:
        raise InputError(f"{needy[0]} needs unit descriptors, and network {network.name!r} gives others")
    if isinstance(loss, Learnable):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(recipe.train.seed)
            loss.start(classes, device, network.dim)
    if not loss.needs_tuples and not (isinstance(loss, PmlLoss) and recipe.miner is not None):
        if recipe.miner is not None:
            raise InputError(
                f"loss {recipe.loss.name!r} is computed on whole batches and takes no miner: leave [miner] out"
            )
        return Objective(loss, None, added)
    chosen = recipe.miner or DEFAULT_MINER
    return Objective(loss, check(miners.get(chosen.name), chosen.options, f"miner {chosen.name!r}"), added)
