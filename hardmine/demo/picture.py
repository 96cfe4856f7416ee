"""The demo's picture: ROC curves on held-out photographs, and the stereo pair matched before and after training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from hardmine.demo.matching import Matches
from hardmine.protocols.base import Evaluated
from hardmine.store.files import replacing

_INK, _FAINT = "#1f2933", "#7b8794"
_RIGHT, _WRONG = "#2fd07f", "#ff4d5e"
_RIGHT_TEXT, _WRONG_TEXT = "#128a4d", "#d7263d"  # the same, legible on white
_CURVES = ("#b0b8c1", "#7d8794", "#c9a227", "#2f7ed8", "#d6336c")  # in the order of the table's rows
_GAP = 12  # pixels between the two photographs
_LEFT, _RIGHT_EDGE = 0.052, 0.988  # of the figure's width


def draw(
    file: Path, curves: Mapping[str, Evaluated], left: np.ndarray, right: np.ndarray, matches: Mapping[str, Matches]
) -> None:
    """Write the picture, a PNG. curves: by row of the table. left, right: uint8 (H, W). matches: by title."""
    figure = Figure(figsize=(14, 7.35), dpi=150, facecolor="white")
    grid = figure.add_gridspec(
        2, 2, width_ratios=(1, 1.75), left=_LEFT, right=_RIGHT_EDGE, top=0.865, bottom=0.08, wspace=0.07, hspace=0.13
    )
    _words(figure)
    _roc(figure.add_subplot(grid[:, 0]), curves)
    for row, (title, found) in enumerate(matches.items()):
        _pair(figure.add_subplot(grid[row, 1]), title, left, right, found)
    with replacing(file) as temporary:
        figure.savefig(temporary, format="png")


def _words(figure: Figure) -> None:
    figure.text(_LEFT, 0.95, "hardmine", fontsize=19, fontweight="bold", color=_INK, va="center")
    text = "patch descriptors trained in minutes on two CPU cores, tested on photographs they have never seen"
    figure.text(_RIGHT_EDGE, 0.949, text, fontsize=11.5, color=_FAINT, va="center", ha="right")
    text = (
        "Middlebury stereo pair: each spot of the left photograph and its nearest descriptor in the right one;\n"
        "green where the measured disparity puts it. Spots on even ground, right frames with a detector's noise."
    )
    figure.text(_RIGHT_EDGE, 0.055, text, fontsize=8.5, color=_FAINT, va="top", ha="right", linespacing=1.35)


def _roc(axes: Any, curves: Mapping[str, Evaluated]) -> None:
    """Draw the curves, each with its FPR95 in the legend."""
    for number, (name, result) in enumerate(curves.items()):
        false_positive, true_positive = result.curves["roc"]
        axes.plot(
            np.maximum(false_positive, 1e-5),
            true_positive,
            color=_CURVES[number % len(_CURVES)],
            linewidth=2.0 if number >= len(curves) - 2 else 1.4,
            label=f"{name}   {100 * result.metrics['fpr95']:.1f} %",
        )
    axes.axhline(0.95, color=_FAINT, linewidth=0.8, linestyle=(0, (4, 4)), zorder=0)
    axes.text(1.15e-3, 0.953, "95 % recall", fontsize=8.5, color=_FAINT, va="bottom")
    axes.set(xscale="log", xlim=(1e-3, 1), ylim=(0.4, 1.003))
    axes.set_xlabel("false positive rate", fontsize=10, color=_INK)
    axes.set_ylabel("true positive rate (recall)", fontsize=10, color=_INK)
    axes.set_title("Held-out photographs", fontsize=12, color=_INK, loc="left", pad=9)
    axes.grid(which="major", color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9, which="both", length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    legend = axes.legend(
        title="false positives at 95 % recall",
        loc="lower right",
        fontsize=9.5,
        title_fontsize=9.5,
        frameon=True,
        framealpha=1,
        edgecolor="none",
        labelcolor=_INK,
        alignment="left",
    )
    legend.get_title().set_color(_INK)


def _pair(axes: Any, title: str, left: np.ndarray, right: np.ndarray, found: Matches) -> None:
    """Draw the photographs side by side with lines between the matched points, wrong ones over right ones."""
    height, width = left.shape
    shift = np.array([width + _GAP, 0.0])
    both = np.full((height, 2 * width + _GAP), 255, np.uint8)
    both[:, :width], both[:, width + _GAP :] = left, right
    axes.imshow(both, cmap="gray", vmin=-25, vmax=290, interpolation="antialiased")
    axes.set_anchor("NE")
    ends = np.stack([found.left, found.right + shift], axis=1)
    for which, colour, alpha in ((found.correct, _RIGHT, 0.45), (~found.correct, _WRONG, 0.9)):
        axes.add_collection(LineCollection(ends[which], colors=colour, linewidths=0.6, alpha=alpha))
        points = ends[which].reshape(-1, 2)
        axes.plot(points[:, 0], points[:, 1], ".", color=colour, markersize=2.2, markeredgewidth=0)
    axes.set(xlim=(-0.5, both.shape[1] - 0.5), ylim=(height - 0.5, -0.5))
    axes.set_axis_off()
    axes.set_title(title, fontsize=12, color=_INK, loc="left", pad=7)
    _counts(axes, found)


def _counts(axes: Any, found: Matches) -> None:
    """Say above the right corner how many matches are right and how many wrong, in the colours of the lines."""
    right = int(found.correct.sum())
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 11, "ha": "right", "va": "bottom"}
    wrong = axes.annotate(
        f"{len(found.correct) - right} wrong", (1, 1), (0, 5), xycoords="axes fraction", color=_WRONG_TEXT, **style
    )
    text = f"{right} of {len(found.correct)} right"
    axes.annotate(text, (0, 0), (-14, 0), xycoords=wrong, color=_RIGHT_TEXT, **style)
