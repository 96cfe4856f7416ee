"""`demo`: the whole road once, on real photographs: ingest, mine, train two ways, evaluate, draw what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardmine.demo import photographs
from hardmine.demo.matching import Matches, match
from hardmine.demo.picture import draw
from hardmine.demo.settings import ADASAMPLE, HARDNET, Places, Settings, recipe
from hardmine.pipeline.images import read_grey
from hardmine.pipeline.ingest import IngestReport, ingest
from hardmine.pipeline.readers.stereo import StereoOptions
from hardmine.protocols.base import Evaluated
from hardmine.protocols.evaluate import evaluate
from hardmine.store.files import write_atomic
from hardmine.store.patches import PatchStore
from hardmine.train.loop import train
from hardmine.train.networks import Network
from hardmine.train.recipe import Recipe
from hardmine.train.runs import build_network, load

PICTURE, RESULTS = "hardmine-demo.png", "results.json"
COLUMNS = {"held-out": "held-out photographs", "stereo": "stereo pair"}  # store to column of the table
UNTRAINED, TRAINED = "untrained network", {"hardnet": "HardNet (random pairs)", "adasample": "AdaSample"}
_BASELINES = {"pixels": "pixels", "sift": "OpenCV SIFT"}

Say = Callable[[str], None]


def demo(out: Path, *, say: Say, settings: Settings | None = None) -> dict[str, Any]:
    """Run the demo in the folder `out`, or go on with it: what an earlier call finished is not done again.

    say: called with one line for each step that is done. Returns what was found, JSON: `tables` (title, columns, rows
    of text), `notes` (lines to read with them), `fpr95` (row, column: rate), `matches`, `seconds` of this call by
    step, `picture` and `results` (paths; the latter holds all the rest). Raises MissingError where scikit-image is not
    installed, and what the stages raise.
    """
    settings, places, clock = settings or Settings(), Places(Path(out)), _Clock(say)
    counts = _ingest(places, settings, clock)
    recipes = {"hardnet": recipe(places, settings, HARDNET), "adasample": recipe(places, settings, ADASAMPLE)}
    for name, chosen in recipes.items():
        _train(places.run(name), chosen, TRAINED[name], clock)
    untrained = build_network(recipes["hardnet"]).eval()
    trained = {TRAINED[name]: load(places.run(name)) for name in recipes}
    results = {store: _evaluate(places, store, untrained, trained, clock) for store in COLUMNS}
    with clock.step("match the stereo pair and draw the picture") as note:
        stereo = PatchStore.open(places.store("stereo"))
        matches = {name: match(stereo, network) for name, network in {UNTRAINED: untrained, **trained}.items()}
        _picture(places, results["held-out"], matches)
        note("; ".join(f"{name} {found}" for name, found in matches.items()))
    found = {
        **_table(results),
        "fpr95": {row: {c: results[s][row].metrics["fpr95"] for s, c in COLUMNS.items()} for row in results["stereo"]},
        "matches": {n: {"right": int(m.correct.sum()), "of": len(m.correct)} for n, m in matches.items()},
        "counts": counts,
        "settings": asdict(settings),
        "seconds": {**clock.seconds, "in all": round(sum(clock.seconds.values()), 1)},
        "picture": str(places.out / PICTURE),
        "results": str(places.out / RESULTS),
    }
    write_atomic(places.out / RESULTS, json.dumps(found, indent=1).encode())
    return found


class _Clock:
    """Times the steps and says each of them when it is done."""

    def __init__(self, say: Say):
        self.say = say
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Time the block; it is given a function to add to the line with."""
        notes: list[str] = []
        began = time.perf_counter()
        yield notes.append
        took = time.perf_counter() - began
        self.seconds[name] = round(took, 2)
        self.say(f"{took:6.1f} s  {': '.join([name, *notes])}")


def _ingest(places: Places, settings: Settings, clock: _Clock) -> dict[str, dict[str, int]]:
    """Write the three patch stores. Returns what each ingest counted."""
    training = {"patches_per_class": settings.training_patches, "points_per_photo": settings.training_points}
    held_out = {"patches_per_class": settings.held_out_patches, "points_per_photo": settings.held_out_points}
    stereo = {"left": photographs.LEFT, "right": photographs.RIGHT, "disparity": photographs.DISPARITY}
    plan: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
        ("training", "photos", settings.training, {**training, "pairs": 0}),
        ("held-out", "photos", settings.held_out, {**held_out, "seed": 1}),
        ("stereo", "stereo", photographs.STEREO, stereo),
    ]
    counts = {}
    for name, kind, files, options in plan:
        with clock.step(f"ingest {kind} ({name})") as note:
            source = photographs.copy(files, places.photographs / name)
            report: IngestReport = ingest(kind, source, places.store(name), options=options)
            note(f"{report.counts['classes']:,} spots, {report.counts['patches kept']:,} patches")
        counts[name] = report.counts
    return counts


def _train(path: Path, chosen: Recipe, name: str, clock: _Clock) -> None:
    """Train one row of the table, saying how far it is four times."""
    quarter = max(1, chosen.train.steps // 4)
    heard = 0

    def progress(done: int, total: int, figures: dict[str, float]) -> None:
        nonlocal heard
        if done // quarter > heard and done < total:
            heard = done // quarter
            clock.say(f"          {name}: step {done} of {total}, loss {figures['loss']:.3f}")

    with clock.step(f"train {name}") as note:
        trained = train(chosen, path, progress=progress).trained
        note(f"{trained} steps of {chosen.train.pairs} pairs" if trained else "finished before")


def _evaluate(
    places: Places, store: str, untrained: Network, trained: dict[str, Network], clock: _Clock
) -> dict[str, Evaluated]:
    """Every row of one column of the table; the trained ones from the rounds that the trainings ended with."""
    path, minings = places.store(store), {label: places.run(name) / "mining" for name, label in TRAINED.items()}
    with clock.step(f"evaluate on the {COLUMNS[store]}") as note:
        mining = places.out / "untrained.mining"
        compare = list(_BASELINES)
        first = evaluate("phototour", path, mining, network=untrained, name=UNTRAINED, compare=compare)
        others = [evaluate("phototour", path, minings[name], network=n, name=name) for name, n in trained.items()]
        note(f"{sum(report.embedded for report in others)} rows embedded for the trained networks")
    return {_BASELINES.get(name, name): r for report in (first, *others) for name, r in report.results.items()}


def _picture(places: Places, curves: dict[str, Evaluated], matches: dict[str, Matches]) -> None:
    """Draw the curves, and the matches of the untrained network and of AdaSample's."""
    left, right = (read_grey(places.photographs / "stereo" / name) for name in (photographs.LEFT, photographs.RIGHT))
    shown = {"Before training": matches[UNTRAINED], "After training (AdaSample)": matches[TRAINED["adasample"]]}
    draw(places.out / PICTURE, curves, left, right, shown)


def _table(results: dict[str, dict[str, Evaluated]]) -> dict[str, Any]:
    """The table of results[store][row], and what must be said with it."""
    rows = [
        [name, *(f"{100 * results[store][name].metrics['fpr95']:.2f} %" for store in COLUMNS)]
        for name in results["stereo"]
    ]
    facts = {store: next(iter(results[store].values())).facts for store in COLUMNS}
    said = {s: f"{f['matching']:,} matching and {f['non_matching']:,} non-matching pairs" for s, f in facts.items()}
    table = {
        "title": "False positives at 95 % recall (FPR95; lower is better)",
        "columns": ["descriptor", *COLUMNS.values()],
        "rows": rows,
    }
    span = StereoOptions().span
    notes = [
        f"held-out photographs: {said['held-out']}; views by random homographies, light, blur, noise, frame noise.",
        f"stereo pair: {said['stereo']} of the Middlebury pair Motorcycle, related by its measured disparity. Only "
        f"points whose patch spans little disparity (up to {span:g} of its width) and is seen in both photographs: on "
        "depth edges no descriptor can match. Right frames carry seeded noise (one sigma: 0.15 of the size, 12 "
        "degrees, 0.2 octaves); without it SIFT makes no mistake on them.",
        "both trainings: the same network, first weights, data, steps, loss and negatives; only the positives differ. "
        "One run each: see results.json for the settings.",
    ]
    return {"tables": [table], "notes": notes}
