"""One training step: pixels and plan in, one optimiser update and its figures out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.overlap import Overlap
from hardmine.mining.plan import BatchPlan
from hardmine.pipeline.pixels import prepare
from hardmine.pipeline.views import Views
from hardmine.train.networks import Network
from hardmine.train.objective import Objective


@dataclass
class StepResult:
    """Figures of one step; tensors are on the device and not read back. loss: what was descended: the weighted mean and
    the regularisers. unweighted: mean of the per-pair losses. skipped: anchors without a negative. figures: the
    regularisers' own."""

    loss: Tensor
    unweighted: Tensor
    skipped: int
    figures: dict[str, Tensor] = field(default_factory=dict)


class Step:
    """The step of a run: the network in train mode, what it descends, its optimiser."""

    def __init__(
        self,
        network: Network,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        seed: int,
        views: Views | None = None,
        overlap: Overlap | None = None,
    ):
        self.network, self.objective, self.optimizer = network, objective, optimizer
        self.device, self.seed, self.views, self.overlap = device, seed, views, overlap

    def __call__(self, pixels: Tensor, plan: BatchPlan, lr: float) -> StepResult:
        """pixels: uint8 (2n, H, W) or (3n, H, W) in the plan's order (anchors, positives, drawn negatives)."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        torch.manual_seed(_mix(self.seed, plan.step))  # dropout is a function of (seed, step), also after a resume
        excluded = None
        if self.overlap is not None and self.overlap.known:
            excluded = torch.from_numpy(self.overlap.among(plan.label)).to(self.device)
        labels = torch.from_numpy(plan.labels)
        given = planned_input(pixels.to(self.device, non_blocking=True), plan, self.network.side, self.views)
        batch = Batch(self.network(given), labels, plan.pairs, excluded)
        total, output, skipped, figures = self.objective(batch, torch.from_numpy(plan.weight).to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        self.optimizer.step()
        return StepResult(total.detach(), output.per_item.detach().mean(), skipped, figures)


def planned_input(pixels: Tensor, plan: BatchPlan, side: int, views: Views | None) -> Tensor:
    """The network's input float32 (m, 1, side, side) of a plan's patches uint8 (m, H, W), turned and flipped as the
    plan says, on the device of `pixels`."""
    angle = None
    if views is not None:
        angle = torch.from_numpy(views.angles(plan.rows, plan.views)).to(pixels.device)
    dihedral = torch.from_numpy(plan.symmetries) if plan.dihedral.any() else None
    return prepare(pixels, side, angle=angle, dihedral=dihedral)


def _mix(seed: int, step: int) -> int:
    """One 63-bit seed of (seed, step)."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))
