"""How often two even directions are at a distance, for negatives that are drawn against it.

Wu et al., "Sampling matters in deep embedding learning", ICCV 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardmine.errors import InputError

_ANTIPODE = 2.0**-24  # least 1 - d^2 / 4: at d = 2 the density is 0 and its inverse infinite


def log_inverse_density(distance: Tensor, dim: int, floor: float) -> Tensor:
    """-ln q(d) = (2 - D) ln d - (D - 3) / 2 ln(1 - d^2 / 4) with d = max(distance, floor), where q is the unnormalised
    density of the distance of two even directions on the unit sphere in `dim` = D dimensions. float64, shaped as
    `distance`, finite also at d = 2. Raises InputError where D < 2."""
    if dim < 2:
        raise InputError(f"distance-weighted sampling needs descriptors of two dimensions or more, not {dim}")
    d = distance.double().clamp(min=floor)
    return (2 - dim) * torch.log(d) - (dim - 3) / 2 * torch.log((1 - d * d / 4).clamp(min=_ANTIPODE))
