"""`analyse informativeness` from a run's folder to a table, a JSON and a CSV report, the arrays, and the figure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.options import check
from hardmine.protocols.informativeness import Bench, InformativenessOptions, Pairs
from hardmine.protocols.moments import moments
from hardmine.store.files import disk_errors, replacing, write_atomic
from hardmine.train.ranks import default_device
from hardmine.train.runs import Run

NAME = "informativeness"
_PANELS = 4  # scatter plots in the figure, at most
Progress = Callable[[int, int], None]


def analyse_informativeness(
    run: str | Path,
    out: str | Path,
    checkpoints: Sequence[int] | None = None,
    store: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure the pairs of the run folder `run` over its training, and write `informativeness.json`, `.csv` (a line for
    each step), `.npz` (an element for each pair) and `.png` into the folder `out`. Returns what the JSON holds.

    checkpoints: steps; default: all whose weights are there (`moments`). store: another patch store than the recipe's.
    options: of `InformativenessOptions`. Raises InputError, MissingError, StoreError, UnknownNameError, DiskError.
    """
    out, opened = Path(out), Run.open(run)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out is a folder")
    chosen = check(InformativenessOptions, options or {}, f"analyse {NAME}")
    found, messages = moments(opened, checkpoints)
    bench = Bench(opened, chosen, store)
    messages += [
        f"the sampler's own numbers at step {each.step} are not known: it draws as at the start of the run"
        for each in found
        if each.sampler is None and bench.own
    ]
    where = default_device(device)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(found) * chosen.batches)

    by_step, points = dict[int, Pairs](), []
    for moment in found:
        by_step[moment.step], skipped = bench.measure(opened, moment, where, advance)
        points.append({"step": moment.step, **summary(by_step[moment.step])})
        if skipped:
            messages.append(f"{skipped} pairs of step {moment.step} found no negative and have no loss: left out")
    facts = {
        "run": str(opened.path),
        "store": str(bench.store.path),
        "split": bench.split,
        "network": opened.recipe.network.name,
        "sampler": bench.recipe.sampler.name,
        "loss": opened.recipe.loss.name,
        "options": chosen.model_dump(mode="json", exclude={"split"}),
        "points": points,
        "messages": messages,
    }
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / f"{NAME}.json", (json.dumps(facts, indent=1) + "\n").encode())
    write_atomic(out / f"{NAME}.csv", _csv(points).encode())
    with replacing(out / f"{NAME}.npz") as temporary, temporary.open("wb") as file:
        step = np.repeat(list(by_step), [len(pairs.distance) for pairs in by_step.values()])
        np.savez(file, allow_pickle=False, step=step, **asdict(Pairs.joined(list(by_step.values()))))
    with replacing(out / f"{NAME}.png") as temporary:
        draw(temporary, by_step, points)
    return facts


def summary(pairs: Pairs) -> dict[str, Any]:
    """The figures of one step: `pairs`; `flat`, those of them whose gradient is 0 (a satisfied margin); Pearson's
    `correlation` of distance and gradient norm over all pairs, and over those that are not flat; two means."""
    flat = pairs.gradient_norm == 0
    return {
        "pairs": len(pairs.distance),
        "flat": int(flat.sum()),
        "correlation": pearson(pairs.distance, pairs.gradient_norm),
        "correlation_not_flat": pearson(pairs.distance[~flat], pairs.gradient_norm[~flat]),
        "mean_distance": _mean(pairs.distance),
        "mean_gradient_norm": _mean(pairs.gradient_norm),
    }


def pearson(x: np.ndarray, y: np.ndarray) -> float | None:
    """Pearson's correlation in float64; None where it is not defined: fewer than two pairs, or one of them constant."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x.astype(np.float64), y.astype(np.float64))[0, 1])


def draw(file: Path, by_step: Mapping[int, Pairs], points: Sequence[Mapping[str, Any]]) -> None:
    """Write a PNG: gradient norm against distance at up to four of the steps, and, with several, the correlation over
    training."""
    from matplotlib.figure import Figure

    steps = list(by_step)
    shown = [steps[i] for i in np.unique(np.linspace(0, len(steps) - 1, min(_PANELS, len(steps))).round().astype(int))]
    over_time = len(steps) > 1
    figure = Figure(figsize=(3.2 * (len(shown) + over_time), 3.2), layout="constrained")
    panels: Any = figure.subplots(1, len(shown) + over_time, squeeze=False)[0]
    known = {point["step"]: point["correlation"] for point in points}
    for axes, step in zip(panels, shown):
        axes.scatter(by_step[step].distance, by_step[step].gradient_norm, s=5, alpha=0.5, linewidths=0)
        r = "not defined" if known[step] is None else f"{known[step]:.2f}"
        axes.set(title=f"step {step}, r = {r}", xlabel="matching distance", xlim=(0, None), ylim=(0, None))
    panels[0].set_ylabel("gradient norm")
    if over_time:
        axes = panels[-1]
        axes.plot(steps, [np.nan if known[s] is None else known[s] for s in steps], marker="o")
        axes.axhline(0, color="grey", linewidth=0.6)
        axes.set(title="over training", xlabel="step", ylabel="Pearson's correlation", ylim=(-1, 1))
    figure.savefig(file, format="png", dpi=150)


def steps(text: str) -> list[int] | None:
    """'0,50,100' as numbers; None for an empty text. Raises InputError."""
    if not text:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--checkpoints {text}: expected steps with commas between them, e.g. 0,50,100") from None


def _mean(x: np.ndarray) -> float | None:
    return float(x.mean(dtype=np.float64)) if len(x) else None


def _csv(points: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(points[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return text.getvalue()
