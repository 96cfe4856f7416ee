"""What several seeds say: mean, deviation, change against a baseline, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu

LEAST_SEEDS = 5  # of either side, for a p value


@dataclass(frozen=True)
class Summary:
    """Of figures in percent. deviation: of a sample (n - 1), None below two. change: (mean - baseline's) / baseline's;
    p: see `p_value`; both None without a baseline that has figures."""

    mean: float
    deviation: float | None
    count: int
    change: float | None = None
    p: float | None = None


def summarise(values: Sequence[float], baseline: Sequence[float] = (), *, lower_is_better: bool) -> Summary | None:
    """Summary of a row's figures, one a seed, against those of its baseline; None without any."""
    if not len(values):
        return None
    mean = float(np.mean(values))
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    change = relative_change(mean, float(np.mean(baseline))) if len(baseline) else None
    return Summary(mean, deviation, len(values), change, p_value(values, baseline, lower_is_better=lower_is_better))


def relative_change(value: float, baseline: float) -> float | None:
    """(value - baseline) / baseline; None for a baseline of 0."""
    return (value - baseline) / baseline if baseline else None


def p_value(values: Sequence[float], baseline: Sequence[float], *, lower_is_better: bool) -> float | None:
    """One-sided Mann-Whitney U test of `values` being better than `baseline`, as in AdaSample's Table 3; None unless
    both have LEAST_SEEDS figures."""
    if min(len(values), len(baseline)) < LEAST_SEEDS:
        return None
    return float(mannwhitneyu(values, baseline, alternative="less" if lower_is_better else "greater").pvalue)
