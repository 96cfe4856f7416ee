"""The dot plot of the HPatches paper: one bar per descriptor, best on top, and a dot for each of its cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardmine.protocols.base import Evaluated
from hardmine.protocols.hpatches.strips import NOISES
from hardmine.store.files import replacing

_COLOURS = dict(zip(NOISES, ("tab:green", "tab:blue", "tab:red"), strict=True))
_MARKERS = ("D", "*")  # of the groups, in order


def plot_task(
    results: Mapping[str, Evaluated], file: Path, cell: str, groups: tuple[str, ...], title: str, headline: str = "map"
) -> None:
    """Draw several descriptors' figures of one task to a PNG.

    cell: the name of a cell in `details`, with {noise} and {group} to be filled in; cells that are not there are left
    out. groups: one marker each. headline: the metric that the bars show and that is written beside them, in percent.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    order = sorted(results, key=lambda name: results[name].metrics[headline])
    figure = Figure(figsize=(7, 1.4 + 0.34 * len(order)), layout="constrained")
    axes: Any = figure.add_subplot()
    means = [100 * results[name].metrics[headline] for name in order]
    axes.barh(range(len(order)), means, color="lightgrey", edgecolor="dimgrey", height=0.7, zorder=1)
    for place, name in enumerate(order):
        for noise, colour in _COLOURS.items():
            for group, marker in zip(groups, _MARKERS, strict=False):
                value = results[name].details.get(cell.format(noise=noise, group=group))
                if value is not None:
                    axes.plot(100 * value, place, marker, color=colour, markersize=6, alpha=0.8, zorder=3)
        axes.text(101.5, place, f"{means[place]:.2f}", va="center")
    axes.set(yticks=range(len(order)), yticklabels=order, xlim=(0, 100), xlabel=f"{title} [%]")
    axes.grid(axis="x", linestyle=":", zorder=0)
    handles = [Line2D([], [], marker="o", linestyle="", color=colour, label=n) for n, colour in _COLOURS.items()]
    if len(groups) > 1:
        handles += [
            Line2D([], [], marker=marker, linestyle="", color="black", label=group)
            for group, marker in zip(groups, _MARKERS, strict=False)
        ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
