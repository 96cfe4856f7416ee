"""Batch norm over the whole batch where several processes share it.

torch's SyncBatchNorm does that for batch norm on CUDA; the statistics here do it on any device, and for layers with
statistics of their own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hardmine.mining.batch import full_precision
from hardmine.train.networks.gor_net import PositionNorm
from hardmine.train.ranks import Processes, Ranks


class _Moments(torch.autograd.Function):
    """(variance, mean) of equal shares, from the moments of each; the gradients that they get in every process are
    summed, since every share has a part in them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], ranks: Processes) -> tuple[Tensor, Tensor]:
        shares = ranks.concatenated(torch.stack(torch.var_mean(x, dims, correction=0, keepdim=True))[None])
        variances, means = shares[:, 0], shares[:, 1]
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        ctx.save_for_backward(x, mean)
        ctx.ranks, ctx.count = ranks, ranks.size * x.numel() // mean.numel()
        return variance, mean

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, mean = ctx.saved_tensors
        for_variance, for_mean = ctx.ranks.sum(torch.stack(gradients)) / ctx.count
        return torch.addcmul(for_mean, x - mean, 2 * for_variance), None, None


@torch.compiler.disable
def moments(x: Tensor, dims: tuple[int, ...], ranks: Processes) -> tuple[Tensor, Tensor]:
    """(variance, mean) over `dims`, kept as dimensions of length 1, of the parts x that all processes have; with
    gradient. The variance divides by the number of values."""
    return _Moments.apply(x, dims, ranks)


class GlobalBatchNorm(_BatchNorm):
    """Batch norm in one, two or three dimensions with the statistics of the whole batch, also the running ones.
    Computed in float32, or in float64 where x is that already."""

    ranks: Processes

    @classmethod
    def of(cls, layer: _BatchNorm, ranks: Processes) -> GlobalBatchNorm:
        """One that has the parameters and statistics of `layer`, and not copies of them."""
        made = cls(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        made.weight, made.bias, made.ranks = layer.weight, layer.bias, ranks
        made.running_mean, made.running_var = layer.running_mean, layer.running_var
        made.num_batches_tracked = layer.num_batches_tracked
        return made.train(layer.training)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"expected (n, channels, ...), not {tuple(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, ...) to the same."""
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        wide = full_precision(x)
        variance, mean = moments(wide, (0, *range(2, x.dim())), self.ranks)
        self._track(variance.detach().flatten(), mean.detach().flatten(), self.ranks.size * x.numel() // x.shape[1])
        scale = torch.rsqrt(variance + self.eps)
        shape = mean.shape
        if self.weight is not None:
            scale = scale * self.weight.to(wide.dtype).view(shape)
        out = (wide - mean) * scale
        return (out if self.bias is None else out + self.bias.to(wide.dtype).view(shape)).to(x.dtype)

    @torch.no_grad()
    def _track(self, variance: Tensor, mean: Tensor, count: int) -> None:
        """Move the running statistics as torch's batch norm does: the variance that they follow is the unbiased one."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        new = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), new)
        self.running_var.lerp_((variance * (count / max(count - 1, 1))).to(self.running_var.dtype), new)


def _position_moments(ranks: Processes, maps: Tensor) -> tuple[Tensor, Tensor]:
    variance, mean = moments(maps, (0,), ranks)
    return variance.squeeze(0), mean.squeeze(0)


def share_statistics(network: nn.Module, ranks: Ranks) -> None:
    """Let the batch norm layers of `network` that are in training mode use the statistics of the whole batch, in place;
    frozen ones stay as they are. Nothing changes for one process, nor do the names in the state dict."""
    if not isinstance(ranks, Processes):
        return
    for module in network.modules():
        if isinstance(module, PositionNorm):
            module.moments = partial(_position_moments, ranks)
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _BatchNorm) and layer.training:
                on_cuda = ranks.device.type == "cuda"
                shared = nn.SyncBatchNorm.convert_sync_batchnorm(layer) if on_cuda else GlobalBatchNorm.of(layer, ranks)
                setattr(parent, name, shared)
