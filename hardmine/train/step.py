"""One training step: pixels and plan in, one optimiser update and its figures out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.overlap import Overlap
from hardmine.mining.plan import BatchPlan, Plan
from hardmine.pipeline.image_frame import unit_interval
from hardmine.pipeline.pixels import prepare
from hardmine.pipeline.views import Views
from hardmine.train.networks import Network
from hardmine.train.objective import Objective
from hardmine.train.optimizers import NamedOptimizer


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
    """The step of a run: the network in train mode, what it descends, its optimiser."""

    def __init__(
        self,
        network: Network,
        objective: Objective,
        optimizer: NamedOptimizer,
        *,
        device: torch.device,
        seed: int,
        views: Views | None = None,
        overlap: Overlap | None = None,
    ):
        self.network, self.objective, self.optimizer = network, objective, optimizer
        self.device, self.seed, self.views, self.overlap = device, seed, views, overlap

    def __call__(self, pixels: Tensor, plan: Plan, factor: float) -> StepResult:
        """pixels: in the plan's order, uint8 patches (m, H, W) or images (m, channels, side, side). factor: of the
        learning rates."""
        torch.manual_seed(_mix(self.seed, plan.step))  # dropout is a function of (seed, step), also after a resume
        excluded = None
        if isinstance(plan, BatchPlan) and self.overlap is not None and self.overlap.known:
            excluded = torch.from_numpy(self.overlap.among(plan.label)).to(self.device)
        labels = torch.from_numpy(plan.labels)
        generator = torch.Generator().manual_seed(_mix(self.seed, plan.step, 1))
        given = planned_input(pixels.to(self.device, non_blocking=True), plan, self.network, self.views)
        batch = Batch(self.network(given), labels, plan.pairs, excluded, generator)
        weight = None if plan.weight is None else torch.from_numpy(plan.weight).to(self.device)
        total, output, skipped, figures = self.objective(batch, weight)
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step(factor)
        return StepResult(total.detach(), output.per_item.detach().mean(), skipped, figures)


def planned_input(pixels: Tensor, plan: Plan, network: Network, views: Views | None) -> Tensor:
    """The network's input, float32 (m, channels, side, side), of a plan's items: patches uint8 (m, H, W), turned and
    flipped as the plan says, or images in the network's frame. On the device of `pixels`."""
    if network.frame is not None:
        return unit_interval(pixels, pixels.device)
    if not isinstance(plan, BatchPlan):
        return prepare(pixels, network.side)
    angle = None
    if views is not None:
        angle = torch.from_numpy(views.angles(plan.rows, plan.views)).to(pixels.device)
    dihedral = torch.from_numpy(plan.symmetries) if plan.dihedral.any() else None
    return prepare(pixels, network.side, angle=angle, dihedral=dihedral)


def _mix(*numbers: int) -> int:
    """One 63-bit seed of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
