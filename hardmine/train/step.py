"""One training step: pixels and plan in, one optimiser update and its figures out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.embed import half_precision
from hardmine.mining.overlap import Overlap
from hardmine.mining.plan import BatchPlan, Plan
from hardmine.pipeline.image_frame import unit_interval
from hardmine.pipeline.pixels import prepare
from hardmine.pipeline.views import Views
from hardmine.train.global_norm import share_statistics
from hardmine.train.networks import Network
from hardmine.train.objective import Objective
from hardmine.train.optimizers import NamedOptimizer
from hardmine.train.phases import Phases
from hardmine.train.placed_dropout import place_dropout
from hardmine.train.ranks import Ranks
from hardmine.train.recipe import Loop
from hardmine.train.seeds import mixed


@dataclass
class StepResult:
    """Figures of one step; tensors are on the device and not read back. loss: what was descended: the weighted mean and
    the regularisers. unweighted: mean of the per-pair losses. skipped: anchors without a negative. figures: the
    loss' and the regularisers' own."""

    loss: Tensor
    unweighted: Tensor
    skipped: int | Tensor
    figures: dict[str, float | Tensor] = field(default_factory=dict)


class Step:
    """The step of a run: the network in train mode, what it descends, its optimiser.

    The network's dropout and, where several processes share a batch, its batch norm are exchanged for layers that act
    on the batch as a whole; its state dict stays as it is."""

    def __init__(
        self,
        network: Network,
        objective: Objective,
        optimizer: NamedOptimizer,
        knobs: Loop,
        ranks: Ranks,
        views: Views | None = None,
        overlap: Overlap | None = None,
    ):
        self.network, self.objective, self.optimizer = network, objective, optimizer
        self.ranks, self.device, self.seed = ranks, ranks.device, knobs.seed
        self.views, self.overlap = views, overlap
        self.phases = Phases(ranks.device)
        self.half = half_precision(knobs.autocast or "float32")
        self.scaler = torch.amp.GradScaler(self.device.type) if self.half == torch.float16 else None
        self._masks = place_dropout(network, ranks.size > 1)
        share_statistics(network.train(), ranks)
        self._forward = torch.compile(network) if knobs.compile else network
        self._learned = [p for group in objective.parameter_groups() for p in group["params"]]

    def __call__(self, pixels: Tensor, plan: Plan, factor: float) -> StepResult:
        """pixels: of this process's slots of the plan, in their order, uint8 patches (n, H, W) or images (n, channels,
        side, side). factor: of the learning rates."""
        slots = self.ranks.slots(plan)
        # dropout is a function of (seed, step, slot); a network's further draws are one of (seed, step, process)
        self._masks.begin(mixed(self.seed, plan.step, 2), len(plan), slots)
        torch.manual_seed(mixed(self.seed, plan.step, *([3, self.ranks.rank] if self.ranks.rank else [])))
        generator = torch.Generator().manual_seed(mixed(self.seed, plan.step, 1))
        with self.phases("transform"):
            given = planned_input(self._moved(pixels), plan, self.network, self.views, slots)
        with self.phases("forward"):
            with torch.autocast(self.device.type, self.half, enabled=self.half is not None):
                share = self._forward(given)
            descriptors = self.ranks.gather(share, plan)
        with self.phases("loss"):
            batch = Batch(descriptors, self._labels(plan), plan.pairs, self._excluded(plan), generator)
            weight = None if plan.weight is None else self._moved(torch.from_numpy(plan.weight))
            total, output, skipped, figures = self.objective(batch, weight)
        with self.phases("backward"):
            self.optimizer.zero_grad()
            (total if self.scaler is None else self.scaler.scale(total)).backward()
            self.ranks.sum_gradients(self.network.parameters())
            self.ranks.level([p.grad for p in self._learned if p.grad is not None])
        with self.phases("optimiser"):
            self.optimizer.step(factor, self.scaler)
        unweighted = output.per_item.detach().mean()
        self.ranks.level([unweighted])
        return StepResult(total.detach(), unweighted, skipped, figures)

    def _moved(self, values: Tensor) -> Tensor:
        """Values on the device, without waiting for it."""
        if self.device.type == "cuda" and not values.is_pinned():
            values = values.pin_memory()
        return values.to(self.device, non_blocking=True)

    def _labels(self, plan: Plan) -> Tensor:
        return self._moved(torch.from_numpy(plan.labels))

    def _excluded(self, plan: Plan) -> Tensor | None:
        """bool (n, n) of the pairs whose classes overlap in a photograph; None where nothing is known of that."""
        if not isinstance(plan, BatchPlan) or self.overlap is None or not self.overlap.known:
            return None
        return self._moved(torch.from_numpy(self.overlap.among(plan.label)))


def planned_input(
    pixels: Tensor, plan: Plan, network: Network, views: Views | None, slots: np.ndarray | None = None
) -> Tensor:
    """The network's input, float32 (n, channels, side, side), of a plan's items, or of those in its `slots`: patches
    uint8 (n, H, W), turned and flipped as the plan says, or images in the network's frame. On `pixels`' device."""
    if network.frame is not None:
        return unit_interval(pixels, pixels.device)
    if not isinstance(plan, BatchPlan):
        return prepare(pixels, network.side)
    own: np.ndarray | slice = slice(None) if slots is None else slots
    angle = None
    if views is not None:
        angle = torch.from_numpy(views.angles(plan.rows[own], plan.views[own]))
    dihedral = torch.from_numpy(plan.symmetries[own]) if plan.dihedral.any() else None
    return prepare(pixels, network.side, angle=angle, dihedral=dihedral)
