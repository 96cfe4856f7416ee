"""Optimisers of a run: their parameter groups, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from hardmine.errors import InputError
from hardmine.options import Options

_ONLY = {"sgd": {"momentum", "dampening"}, "adam": {"betas"}}


class Optimizer(Options):
    """sgd, as local descriptors are published (specs 3.3, 4.3), or adam, as image embeddings are (specs 1.7).

    momentum, dampening: of sgd. betas: of adam. head_lr: learning rate of the network's last layer (`head`), where it
    differs. What a loss learns itself has the rate that the loss says. fused: all of an update in one kernel per group
    of parameters; null: on CUDA alone (on a CPU it may round differently)."""

    name: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(10.0, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    dampening: float = Field(0.9, ge=0, le=1)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(1e-4, ge=0)
    head_lr: float | None = Field(None, gt=0)
    fused: bool | None = None

    @model_validator(mode="after")
    def _only_its_own(self) -> Optimizer:
        for other in sorted(set(_ONLY) - {self.name}):
            for name in sorted(_ONLY[other]):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is for {other}, not for {self.name}")
        return self


class NamedOptimizer:
    """A torch optimiser whose groups share one factor on their learning rates, and whose state has names."""

    def __init__(
        self, options: Optimizer, network: nn.Module, learned: Sequence[Mapping[str, Any]] = (), fused: bool = False
    ):
        """learned: the groups of a loss with parameters of its own, see `Learnable.parameter_groups`. fused: where the
        options do not say. Raises InputError where `head_lr` has no layer to act on."""
        fused = fused if options.fused is None else options.fused
        body: list[tuple[str, nn.Parameter]] = []
        head: list[tuple[str, nn.Parameter]] = []
        for name, parameter in network.named_parameters():
            if parameter.requires_grad:
                (head if name.startswith("head.") and options.head_lr else body).append((name, parameter))
        if options.head_lr and not head:
            raise InputError("optimizer.head_lr: this network has no layer called head")
        self._names = [name for name, _ in body + head]
        settings: list[dict[str, Any]] = [
            {"params": [p for _, p in named], "lr": lr, "weight_decay": options.weight_decay}
            for named, lr in ((body, options.lr), (head, options.head_lr))
            if named
        ]
        for group in learned:
            self._names += [f"loss.{len(settings)}.{i}" for i in range(len(group["params"]))]
            settings.append(dict(group))
        for group in settings:
            group["initial_lr"] = group["lr"]
        if options.name == "sgd":
            self.torch: torch.optim.Optimizer = torch.optim.SGD(
                settings, momentum=options.momentum, dampening=options.dampening, fused=fused
            )
        else:
            self.torch = torch.optim.Adam(settings, betas=options.betas, fused=fused)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.torch.zero_grad(set_to_none=True)

    def step(self, factor: float, scaler: torch.amp.GradScaler | None = None) -> None:
        """One update with every group's learning rate times `factor`; by `scaler`, where the loss was scaled, which
        leaves the update out where a gradient is not finite."""
        for group in self.torch.param_groups:
            group["lr"] = group["initial_lr"] * factor
        if scaler is None:
            self.torch.step()
            return
        scaler.step(self.torch)
        scaler.update()

    def state(self) -> dict[str, Tensor]:
        """What the next updates depend on, as 'name/kind' -> tensor, for a checkpoint."""
        return {
            f"{self._names[i]}/{kind}": value
            for i, buffers in self.torch.state_dict()["state"].items()
            for kind, value in buffers.items()
            if isinstance(value, Tensor)
        }

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Go back to a `state`. What has a parameter's shape gets its layout in memory, too: fused updates go through
        both in the order in which they lie, and files know one order only."""
        place = {name: i for i, name in enumerate(self._names)}
        parameters = [p for group in self.torch.param_groups for p in group["params"]]
        restored: dict[int, dict[str, Tensor]] = {}
        for key, value in saved.items():
            name, _, kind = key.rpartition("/")
            parameter = parameters[place[name]].detach()
            alike = kind != "step" and value.shape == parameter.shape
            restored.setdefault(place[name], {})[kind] = torch.empty_like(parameter).copy_(value) if alike else value
        self.torch.load_state_dict({**self.torch.state_dict(), "state": restored})
