"""`inspect`: what is in a patch store, a mining store or a run, as plain facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hardmine.errors import MissingError
from hardmine.store.files import json_lines
from hardmine.store.fingerprint import flat
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import DERIVED, LOG, MiningStore, Round
from hardmine.train import checkpoint
from hardmine.train.runs import Run

UNUSED: dict[str, Any] = {"age": None, "still hard": None, "stale": None}  # of a round that no run has looked at


def inspect(path: str | Path) -> dict[str, Any]:
    """Facts about whatever is at `path`: titles to values, dicts, or lists of rows. Raises MissingError."""
    path = Path(path)
    if (path / "manifest.json").is_file():
        return patch_store(PatchStore.open(path))
    if (path / "run.json").is_file():
        return run(Run.open(path))
    if (path / "zarr.json").is_file():
        return mining_store(MiningStore(path))
    raise MissingError(f"{path} is no patch store (manifest.json), mining store (zarr.json) or run (run.json)")


def patch_store(store: PatchStore) -> dict[str, Any]:
    """Counts, splits, class sizes, pair lists, reader's counts and rejects of a patch store."""
    sizes = np.bincount(store.label[store.used], minlength=store.num_classes)
    manifest = store.manifest
    return {
        "patch store": {
            "path": str(store.path),
            "kind": manifest.kind,
            "pixels made by": manifest.policy or "the dataset's own patches",
            "patches": len(store),
            "pixels": "x".join(map(str, store.pixel_shape)) if store.pixel_shape else "of several sizes",
            "shards": manifest.shards_kind,
            "classes": store.num_classes,
            "used patches": int(store.used.sum()),
            "patches per class": f"{sizes.min()} to {sizes.max()}, mean {sizes.mean():.2f}",
            "classes with one patch": int((sizes == 1).sum()),
            "columns": ", ".join(manifest.columns),
            "fingerprint": store.fingerprint,
        },
        "options": dict(manifest.options),
        "pictures": dict(manifest.pictures or {}),
        "splits": [
            {"split": name, "patches": len(store.rows(name)), "classes": len(np.unique(store.label[store.rows(name)]))}
            for name in store.split_names
        ],
        "evaluation pairs": [{"list": p.name, "pairs": p.rows, "lost to rejects": p.lost} for p in manifest.pairs],
        "counts": dict(manifest.counts),
        "shards": [{"file": s.file, "rows": s.rows, "bytes": s.bytes, "sha256": s.sha256} for s in manifest.shards],
        "rejects": len(store.rejects()),
    }


def mining_store(store: MiningStore) -> dict[str, Any]:
    """The committed rounds of a mining store: what each was made from, its size and spread, what was derived and how
    much of the exact lists an index finds, and which of its files are missing or of another size than recorded; in the
    mining store of a run also how stale each was when the run last looked."""
    rounds, log, folder = store.rounds(), json_lines(store.path / LOG), store.path.resolve().parent
    used = _rounds_used(Run.open(folder).log()) if (folder / "run.json").is_file() else []
    stale = {each["round"]: {name: each[name] for name in UNUSED} for each in used}
    return {
        "mining store": str(store.path),
        "rounds": [
            {
                "round": r.number,
                "network": r.key["network"]["network"],
                "weights": r.key["network"]["weights"][:12],
                "step": r.attrs["step"],
                "split": r.key["split"],
                "patch store": r.key["patches"][:12],
                "entries": r.attrs["counts"]["entries"],
                "derived": ", ".join(r.derived),
                "spread": r.attrs["spread"],
                "bytes": sum(r.sizes().values()),
                "recall": _recall(r),
                **stale.get(r.number, UNUSED),
                "damaged files": [f"{each.file} {each.problem}" for each in r.damaged()],
            }
            for r in rounds
        ],
        "keys": [
            {
                "round": r.number,
                "key": r.attrs["key_hash"][:12],
                "dtype": r.key["dtype"],
                "views": json.dumps(r.key["views"]) if r.key["views"] else None,
                "embedded": ", ".join(f"{k} {str(v)[:12]}" for k, v in r.attrs["how"].items()),
                "entries embedded": sum(line["embedded"] for line in log if line["round"] == r.number),
                "seconds": sum(line["seconds"] for line in log if line["round"] == r.number),
            }
            for r in rounds
        ],
        "derived": [
            {
                "round": r.number,
                "derived": what,
                "bytes": _bytes(r, what),
                "record": flat(r.attrs["derived"][what]),
            }
            for r in rounds
            for what in r.derived
        ],
    }


def _recall(opened: Round) -> dict[str, float]:
    """Recall against the exact search of what goes through an index; exact lists have none recorded."""
    found: dict[str, float] = {}
    for what, record in opened.attrs["derived"].items():
        found |= {f"{what} ({name})": record[name] for name in ("recall", "recall_other") if name in record}
    return found


def _bytes(opened: Round, what: str) -> int:
    return sum(opened.sizes().get(array, 0) for array in DERIVED[what])


def run(opened: Run) -> dict[str, Any]:
    """How far a run is, what fixed it, the rounds it trained from, its last figures and where its time went."""
    newest = checkpoint.last(opened.path / "checkpoints")
    lines = opened.log()
    last: dict[str, Any] = {}
    for line in lines:
        last |= {name: value for name, value in line.items() if not name.startswith("seconds/")}
    facts = {
        "run": {
            "path": str(opened.path),
            "state": "finished" if opened.result else "unfinished",
            "steps": f"{newest.step if newest else 0} of {opened.recipe.train.total_steps}",
            "weights kept of steps": ", ".join(map(str, opened.kept())) or "none",
        },
        "recipe": flat(opened.recipe.model_dump(mode="json", exclude_none=True)),
        "rounds trained from": _rounds_used(lines),
        "last figures": last,
        "phases": opened.phases(),
    }
    if opened.result:
        facts["result"] = flat(opened.result)
    return facts


def _rounds_used(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rounds of a run's log, with the last that was measured of each: age in steps, the share of its hard negatives
    that were still hard, and whether it was past a limit of the recipe."""
    used: list[dict[str, Any]] = []
    for line in lines:
        for name, origin in (("start_round", "mining.start"), ("mined_round", "the run")):
            if name in line:
                used.append({"round": line[name], "of": origin, "from step": line["step"], **UNUSED})
        if used and "round_age" in line:
            stale = None if "round_stale" not in line else bool(line["round_stale"]) or bool(used[-1]["stale"])
            used[-1] |= {"age": int(line["round_age"]), "still hard": line.get("round_still_hard"), "stale": stale}
    return used
