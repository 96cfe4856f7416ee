"""The distribution over a training as a picture: training steps across, distances up (the paper's Fig. 1 and 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hardmine.mining.pads.history import History
from hardmine.store.files import replacing

_INK, _FAINT = "#1f2933", "#7b8794"


def draw_history(file: str | Path, history: History, title: str = "Distances that negatives are drawn at") -> None:
    """Write a heat map of p over steps and distances, with the validation metric above it, as a PNG. Raises
    DiskError."""
    figure = history_figure(history, title)
    with replacing(Path(file)) as temporary:
        figure.savefig(temporary, format="png")


def history_figure(history: History, title: str = "") -> Figure:
    """The same as a matplotlib figure, which TensorBoard's writer takes as well. Each line of the history holds from
    its step to the next one's; the last one as long as the one before."""
    figure = Figure(figsize=(9, 5.4), dpi=120, facecolor="white")
    above, below = figure.subplots(
        2,
        1,
        sharex=True,
        gridspec_kw={"height_ratios": (1, 3), "hspace": 0.08, "top": 0.91, "bottom": 0.1, "right": 0.99},
    )
    step = history.step.astype(np.float64)
    width = step[-1] - step[-2] if len(step) > 1 else 1.0
    map_ = below.pcolormesh(
        np.append(step, step[-1] + width), history.edges, history.p.T, cmap="magma", vmin=0.0, rasterized=True
    )
    below.set_xlabel("training step", color=_INK)
    below.set_ylabel("distance to the anchor", color=_INK)
    figure.colorbar(map_, ax=[above, below], pad=0.02, label="probability of the bin")
    above.plot(step, history.metric, color="#2f7ed8", linewidth=1.4)
    above.set_ylabel("reward metric", color=_INK)
    above.set_title(title, fontsize=12, color=_INK, loc="left")
    above.grid(color="#e4e7eb", linewidth=0.7)
    for axes in (above, below):
        _plain(axes)
    return figure


def _plain(axes: Any) -> None:
    axes.tick_params(colors=_INK, labelsize=9, length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
