"""Seeds that are functions of several numbers."""

from __future__ import annotations

import numpy as np


def mixed(*numbers: int) -> int:
    """One 63-bit seed of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
