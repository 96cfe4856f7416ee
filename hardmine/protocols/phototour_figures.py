"""The pictures of the PhotoTour protocol: ROC curves, and the similarities of matching and non-matching pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hardmine.protocols.base import Evaluated
from hardmine.store.files import replacing

_COLOURS = {"matching": "#2f7ed8", "non-matching": "#d6336c"}


def draw_roc(results: dict[str, Evaluated], file: Path) -> None:
    """ROC curves to a PNG, false positive rate on a logarithmic axis, each one's FPR95 in the legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.6 + 0.2 * len(results)), layout="constrained")
    axes: Any = figure.add_subplot()
    for name, result in results.items():
        false_positive, true_positive = result.curves["roc"]
        label = f"{name}: {100 * result.metrics['fpr95']:.2f} %"
        axes.plot(np.maximum(false_positive, 1e-5), true_positive, label=label)
    axes.axhline(0.95, color="grey", linewidth=0.6, linestyle=":")
    axes.set(xscale="log", xlim=(1e-4, 1), ylim=(0.6, 1.005))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    figure.legend(title="FPR95", loc="outside lower center", fontsize=8, frameon=False)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def draw_histograms(results: dict[str, Evaluated], file: Path) -> None:
    """The two histograms of each descriptor, one below the other, to a PNG, with their overlap in the title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 0.6 + 1.9 * len(results)), layout="constrained")
    for row, (name, result) in enumerate(results.items(), 1):
        axes: Any = figure.add_subplot(len(results), 1, row)
        for kind, colour in _COLOURS.items():
            edges, density = result.curves[kind]
            axes.stairs(density, edges, fill=True, alpha=0.45, color=colour, label=kind)
            axes.stairs(density, edges, color=colour, linewidth=0.8)
        axes.set_title(f"{name}: overlap {result.details['similarity-overlap']:.3f}", fontsize=10, loc="left")
        axes.set(xlabel=result.facts["similarity"], ylabel="density", xlim=(edges[0], edges[-1]))
        if row == 1:
            axes.legend(fontsize=8, frameon=False)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
