"""Plain (not squared) Euclidean distances whose gradients are finite at 0."""

from __future__ import annotations

import torch
from torch import Tensor


def between(x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """sqrt(|x_i - y_i|^2 + epsilon), (n,) of float (n, D) each: from the differences, accurate near 0."""
    return torch.sqrt((x - y).square().sum(dim=1) + epsilon)


def all_pairs(x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    """sqrt(|x_i - y_j|^2 + epsilon), (n, m) of float (n, D) and (m, D): from one matrix product, so that squared
    distances have an error of a few units in the last place of |x|^2 + |y|^2."""
    squared = torch.addmm(y.square().sum(1), x, y.T, alpha=-2) + x.square().sum(1, keepdim=True)
    return torch.sqrt(squared.clamp(min=0) + epsilon)


def hardnet(x: Tensor, y: Tensor) -> Tensor:
    """HardNet's distance (specs 3.1), (n,): sqrt(|x_i - y_i|^2 + 1e-6) + 1e-8."""
    return between(x, y, 1e-6) + 1e-8
