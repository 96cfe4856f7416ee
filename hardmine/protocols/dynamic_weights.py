"""`analyse dynamic-weights`: how hard a dynamic loss pulls and pushes, over similarity and training.

DSDML, Fig. 3: the weight of a pair, the size of the loss' derivative by its similarity, at several epochs.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from hardmine.errors import InputError, UnknownNameError
from hardmine.options import Options, check
from hardmine.store.files import disk_errors, replacing, write_atomic
from hardmine.train.losses import losses
from hardmine.train.losses.dynamic_sampling import DynamicSampling
from hardmine.train.runs import Run

NAME = "dynamic-weights"
_SHOWN = (0.0, 0.25, 0.5, 0.75, 1.0)  # similarities of the table


class DynamicWeightsOptions(Options):
    """omegas: 2 E_c / E_t of the curves; null: 0, 0.5, 1, 1.5, 2 for a loss by name, and five of a run's own. other:
    the similarity of the one pair of the other kind that the anchor has. lowest, points: the similarities go from
    `lowest` to 1 in so many steps. loss: options of the loss, for one by name (loss.select=true, ...)."""

    omegas: tuple[float, ...] | None = Field(None, min_length=1)
    other: float = Field(0.5, ge=-1, le=1)
    lowest: float = Field(0.0, ge=-1, lt=1)
    points: int = Field(201, ge=2)
    loss: dict[str, Any] = Field(default_factory=dict)


def analyse_dynamic_weights(
    source: str | Path, out: str | Path, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write `dynamic-weights.png`, `.csv` (a line for each loss, omega and similarity) and `.json` into the folder
    `out`. Returns what the JSON holds: for each curve the weights at a few similarities.

    source: a run's folder, the name of a loss with dynamic terms, or "all" for every one. options: of
    `DynamicWeightsOptions`. Raises InputError, UnknownNameError, MissingError, DiskError.
    """
    out, chosen = Path(out), check(DynamicWeightsOptions, options or {}, f"analyse {NAME}")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out is a folder")
    curves, omegas = _of_run(Path(source), chosen) if Path(source).is_dir() else _by_name(str(source), chosen)
    similarity = np.linspace(chosen.lowest, 1, chosen.points)
    found = {
        (name, omega): pair_weights(loss, omega, similarity, chosen.other)
        for name, loss in curves.items()
        for omega in omegas
    }
    points = [
        {"loss": name, "omega": omega, "pair": kind} | {f"at {at:g}": _at(similarity, weight, at) for at in _SHOWN}
        for (name, omega), pair in found.items()
        for kind, weight in zip(("positive", "negative"), pair)
    ]
    facts = {
        "source": str(source),
        "losses": {name: loss.model_dump(mode="json") for name, loss in curves.items()},
        "other pair's similarity": chosen.other,
        "points": points,
        "written": [str(out / f"{NAME}.{kind}") for kind in ("png", "csv", "json")],
    }
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / f"{NAME}.json", (json.dumps(facts, indent=1) + "\n").encode())
    write_atomic(out / f"{NAME}.csv", _csv(similarity, found).encode())
    with replacing(out / f"{NAME}.png") as temporary:
        draw(temporary, similarity, found)
    return facts


def pair_weights(
    loss: DynamicSampling, omega: float, similarity: np.ndarray, other: float
) -> tuple[np.ndarray, np.ndarray]:
    """|d loss_i / d s|, float64 (n,) each, of an anchor's only positive at each similarity (n,), while its only
    negative is at `other`, and of its only negative while its positive is there."""
    found = []
    for column in (0, 1):
        pair = torch.full((len(similarity), 2), other, dtype=torch.float64)
        pair[:, column] = torch.from_numpy(similarity)
        positive = torch.tensor([True, False]).expand(len(pair), 2)
        per_row, _ = loss.per_row(pair.requires_grad_(), positive, ~positive, omega)
        (gradient,) = torch.autograd.grad(per_row.sum(), pair)
        found.append(gradient[:, column].abs().numpy())
    return found[0], found[1]


def _by_name(name: str, options: DynamicWeightsOptions) -> tuple[dict[str, DynamicSampling], list[float]]:
    kinds = {n: losses.get(n) for n in losses.names()}
    known = {n: kind for n, kind in kinds.items() if issubclass(kind, DynamicSampling)}
    if name != "all" and name not in known:
        raise UnknownNameError("run folder, or loss with dynamic terms,", name, [*known, "all"])
    asked = known if name == "all" else {name: known[name]}
    made = {n: check(kind, {"dynamic": True, **options.loss}, f"loss {n!r}") for n, kind in asked.items()}
    if not all(loss.dynamic for loss in made.values()):
        raise InputError("loss.dynamic = false: without dynamic terms nothing changes over a training")
    return made, list(options.omegas or (0.0, 0.5, 1.0, 1.5, 2.0))


def _of_run(path: Path, options: DynamicWeightsOptions) -> tuple[dict[str, DynamicSampling], list[float]]:
    """The loss of a run, and as many of the omegas that its log holds as a figure can show."""
    opened = Run.open(path)
    if options.loss:
        raise InputError("--set loss...: a run's loss has the options of its recipe; name a loss to try others")
    name = opened.recipe.loss.name
    loss: Any = check(losses.get(name), opened.recipe.loss.options, f"loss {name!r}")
    if not isinstance(loss, DynamicSampling) or not loss.dynamic:
        raise InputError(
            f"{path} was trained with {name!r} without dynamic terms: nothing changes in it over a training"
        )
    logged = sorted({line["loss/omega"] for line in opened.log() if "loss/omega" in line})
    if not logged and options.omegas is None:
        raise InputError(
            f"{path} has no line with an omega in its log yet: train it further, or give --set omegas=[...]"
        )
    chosen = [logged[i] for i in np.unique(np.linspace(0, len(logged) - 1, 5).round().astype(int))] if logged else []
    return {name: loss}, list(options.omegas or chosen)


def draw(file: Path, similarity: np.ndarray, found: Mapping[tuple[str, float], tuple[np.ndarray, np.ndarray]]) -> None:
    """Write a PNG: a line of two panels, positive and negative pair, for each loss; a curve for each omega."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    names, omegas = (sorted({key[i] for key in found}) for i in (0, 1))
    figure = Figure(figsize=(8, 0.6 + 2.5 * len(names)), layout="constrained")
    panels: Any = figure.subplots(len(names), 2, squeeze=False)
    for (name, omega), pair in found.items():
        place = omegas.index(omega) / max(len(omegas) - 1, 1)
        for axes, kind, weight in zip(panels[names.index(name)], ("positive", "negative"), pair):
            axes.plot(similarity, weight, color=colormaps["viridis"](0.85 * place), label=f"{omega:.3g}")
            axes.set(title=f"{name}: a {kind} pair", xlabel="similarity", ylabel="weight |dL/ds|")
    panels[0][0].legend(title="omega", fontsize="small")
    figure.savefig(file, format="png", dpi=130)


def _at(similarity: np.ndarray, weight: np.ndarray, at: float) -> float | None:
    return None if at < similarity[0] else float(np.interp(at, similarity, weight))


def _csv(similarity: np.ndarray, found: Mapping[tuple[str, float], tuple[np.ndarray, np.ndarray]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["loss", "omega", "similarity", "positive", "negative"])
    for (name, omega), (positive, negative) in found.items():
        for line in zip(similarity.tolist(), positive.tolist(), negative.tolist()):
            writer.writerow([name, omega, *line])
    return text.getvalue()
