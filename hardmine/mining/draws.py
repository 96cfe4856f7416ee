"""One draw per line of a table of weights, for all lines at once, from a generator on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from hardmine.errors import InputError


def draw(log_weight: Tensor, generator: torch.Generator | None) -> Tensor:
    """For each line a column drawn in proportion to exp(log_weight), int64 (n,); -1 where every weight is 0.

    log_weight: float (n, m), -inf for what must not be drawn. Every line is normalised by itself and in log space, so
    neither its scale nor that of the others matters. A line with NaN draws one of its NaN, so that a loss shows them.
    One number per line is taken from `generator` (None: torch's global one), whatever the weights and the device: equal
    seeds give equal draws. Raises InputError where the generator is not on the CPU.
    """
    lines, columns = log_weight.shape
    u = uniforms(lines, generator).to(log_weight.device)
    if columns == 0 or lines == 0:
        return torch.full((lines,), -1, dtype=torch.int64, device=log_weight.device)
    log_weight = log_weight.double()
    top = log_weight.amax(1, keepdim=True)
    weight = torch.exp(log_weight - top.masked_fill(top == -torch.inf, 0.0))
    unknown = log_weight.isnan()
    weight = torch.where(unknown.any(1, keepdim=True), unknown.double(), weight)
    cumulative = weight.cumsum(1)
    point = u[:, None] * cumulative[:, -1:]
    column = torch.searchsorted(cumulative, point, right=True).squeeze(1)  # the first one beyond the point
    last = columns - 1 - (weight > 0).flip(1).int().argmax(1)  # where the point is rounded up to the sum
    return torch.where(weight.any(1), torch.minimum(column, last), -1)


def draw_even(allowed: Tensor, generator: torch.Generator | None) -> Tensor:
    """`draw` with equal weights among the columns that are True. allowed: bool (n, m)."""
    return draw(torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, -torch.inf), generator)


def uniforms(count: int, generator: torch.Generator | None) -> Tensor:
    """float64 (count,) in [0, 1), on the CPU."""
    require_cpu(generator)
    return torch.rand(count, generator=generator, dtype=torch.float64)


def require_cpu(generator: torch.Generator | None) -> None:
    """Raise InputError where the generator is of another device: its draws would depend on the device."""
    if generator is not None and generator.device.type != "cpu":
        raise InputError(f"the batch's generator is on {generator.device}; give one on the CPU: torch.Generator()")
