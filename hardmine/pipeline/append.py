"""`ingest --append`: what is new in a source joins a committed store, and no row that is there moves.

Items are known by their source name: those that are in the store are skipped. The others are written to new shards
after the old ones; old shards are not touched, old labels keep their number, new raw labels get new numbers at the end.
Only the manifest is replaced, last of all: a killed append leaves the store as it was, and the same call finishes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hardmine.errors import InputError, StoreError
from hardmine.pipeline.append_commit import Known, commit_append, stored
from hardmine.pipeline.commit import discard_leftovers, outcome
from hardmine.pipeline.formats import choose_format
from hardmine.pipeline.ingest import IngestReport, list_items, open_reader
from hardmine.pipeline.ingest_plan import Plan, check_candidates, differing_parts, listing_digests, source_key
from hardmine.pipeline.readers.base import Candidates
from hardmine.pipeline.shard_run import Where, write_shards
from hardmine.pipeline.shards import OnBad
from hardmine.pipeline.splits import NONE, Items, Splits, assign, recorded_split
from hardmine.store.files import remove_partials, write_atomic, write_lock
from hardmine.store.manifest import APPENDING, COLUMNS, FORMAT, PAIRS, SHARDS, UNFINISHED, Manifest
from hardmine.store.patches import PatchStore


def append(
    kind: str,
    src: str | Path,
    store: str | Path,
    *,
    options: dict[str, Any] | None = None,
    on_bad: OnBad = "skip",
    workers: int = 0,
    scheduler: str | None = None,
    in_flight: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> IngestReport:
    """Add the items of the data set in `src` that the patch store `store` does not have yet.

    The store's own choices hold for them: kind of shards, picture options, shard size, class-size limits, split rule
    and seed. A class that is there keeps its split; new classes (photographs, items) are drawn so that the fraction
    holds for all. An item that was rejected before is tried again. Class-size limits are applied anew to the whole, so
    that an old row may become `used` or stop being so. Arguments and `progress` as for `ingest`.

    Raises MissingError if there is no store; InputError where the source does not fit it (pixel shape, columns, kind of
    raw labels), or where raw labels that are numbers do not mean the same classes; StoreError where an append of
    something else is unfinished; and what `ingest` raises.
    """
    src, store, where = Path(src), Path(store), Where(workers, scheduler, in_flight)
    reader, chosen = open_reader(kind, src, options, on_bad, scheduler)
    PatchStore.open(store)  # before a lock file is left in a folder that is none
    candidates = list_items(reader, on_bad)
    check_candidates(kind, candidates)
    with write_lock(store, "the patch store"):
        base = PatchStore.open(store)
        if (store / UNFINISHED).exists():
            discard_leftovers(store)
        known = find_known(base, candidates)
        plan = plan_append(kind, src, chosen, base, candidates, known)
        _begin(base, plan)
        first = len(base.manifest.shards)
        shard_rows = base.manifest.source["shard rows"]
        records, resumed = write_shards(reader, src, store, plan, shard_rows, on_bad, where, progress, first)
        numbers, rejects = outcome(plan, records)
        written = commit_append(base, plan, records, known)
        if written is not None:
            _clear_columns(written, base)
        _end(store, base.manifest if written is None else written)
    counts = {
        "items listed": len(candidates.source),
        "items there already": int((known.row >= 0).sum()),
        "patches added": len(numbers),
        "items rejected": len(rejects),
        "sources not listed": len(candidates.rejects),
        "classes added": plan.classes - base.num_classes,
        "patches in the store": len(base) + len(numbers),
    }
    reasons = Counter([reject.reason for reject in candidates.rejects] + [reason for _, reason in rejects])
    return IngestReport(store, written is not None, resumed, counts, dict(reasons.most_common()))


def find_known(base: PatchStore, candidates: Candidates) -> Known:
    """Which candidates the store has. Raises InputError where one of them has another raw label there, or where raw
    labels are numbers and nothing shows that both number the same classes."""
    row = _lookup(candidates.source, base.source)
    rejected = np.array(sorted({source for source, _ in base.rejects()}), dtype=bytes)
    there = np.flatnonzero(row >= 0)
    if candidates.raw_label.dtype.kind != base.raw_label.dtype.kind:
        raise InputError(
            f"raw labels are {candidates.raw_label.dtype} in the source and {base.raw_label.dtype} in {base.path}"
        )
    differs = there[candidates.raw_label[there] != base.raw_label[row[there]]]
    if len(differs):
        item = int(differs[0])
        raise InputError(
            f"{_text(candidates.source[item])} is of class {_text(candidates.raw_label[item])} here, and of class "
            f"{_text(base.raw_label[row[item]])} in {base.path} (and {len(differs) - 1} more such items): this is "
            "another data set, or one whose classes are numbered anew when it grows. Ingest it as a new store."
        )
    if candidates.raw_label.dtype.kind == "i" and not len(there):
        raise InputError(
            f"the classes of this source are numbers, and no item of it is in {base.path}: nothing says that both mean "
            "the same classes. Ingest it as a new store, or give the whole data set, of which known items are skipped."
        )
    return Known(row, _lookup(candidates.source, rejected) >= 0)


def plan_append(
    kind: str, src: Path, options: dict[str, Any], base: PatchStore, candidates: Candidates, known: Known
) -> Plan:
    """What to add, with labels, splits and photographs numbered as in the store. Raises InputError where it does not
    fit."""
    manifest = base.manifest
    form = choose_format(candidates, manifest.shards_kind, manifest.pictures)
    if form.pixel_shape != manifest.pixel_shape or (form.pictures is None) != (manifest.pictures is None):
        raise InputError(f"items of {src} are {form.pixel_shape}, those of {base.path} {manifest.pixel_shape}")
    candidates = _fitting(base, candidates, known)
    new = np.flatnonzero(known.row < 0)
    raw, first = np.unique(base.raw_label, return_index=True)
    place = _lookup(candidates.raw_label, raw)
    label = np.where(place >= 0, base.label[first][place], -1)
    unknown = new[label[new] < 0]
    fresh, number = np.unique(candidates.raw_label[unknown], return_inverse=True)
    label[unknown] = base.num_classes + number.reshape(-1)
    limits = manifest.source["class size limits"]
    source = {
        "format": FORMAT,
        "store": base.fingerprint,
        "kind": kind,
        "options": options,
        **listing_digests(src, candidates),
    }
    order = new[np.argsort(label[new], kind="stable")]
    splits = _splits(base, candidates, label, new)
    classes = base.num_classes + len(fresh)
    return Plan(kind, options, candidates, form, order, label, classes, splits, limits[0], limits[1], source)


def _splits(base: PatchStore, candidates: Candidates, label: np.ndarray, new: np.ndarray) -> Splits | None:
    rule = recorded_split(base.manifest.source["split"])
    if rule is None:
        return None
    image = None
    old = base.column("image")
    if old is not None:
        image = np.concatenate([old, candidates.columns["image"][new]])
    official = None if candidates.split is None else candidates.split[new]
    there = Splits(base.manifest.splits, stored(base, "split"))
    made = assign(rule, Items(np.concatenate([base.label, label[new]]), image, official), there)
    codes = np.full(len(label), NONE, np.uint8)
    codes[new] = made.codes[len(base) :]
    return Splits(made.names, codes)


def _fitting(base: PatchStore, candidates: Candidates, known: Known) -> Candidates:
    """The candidates with their photographs numbered as in the store. Raises InputError where columns differ."""
    ours = set(base.manifest.columns) - {"label", "raw_label", "source", "used", "split"}
    if ours != set(candidates.columns):
        raise InputError(
            f"the source has the columns {sorted(candidates.columns)}, {base.path} has {sorted(ours)}: they must agree"
        )
    for name, values in candidates.columns.items():
        there = stored(base, name)
        if values.shape[1:] != there.shape[1:] or values.dtype.kind != there.dtype.kind:
            raise InputError(
                f"column {name!r} is {values.dtype} {values.shape[1:]} in the source and {there.dtype} "
                f"{there.shape[1:]} in {base.path}"
            )
    if "image" not in candidates.columns:
        return candidates
    # A photograph that shows known items keeps their number; any other gets a new one, so that none is two photographs.
    old = stored(base, "image")
    numbers, of = np.unique(candidates.columns["image"], return_inverse=True)
    of = of.reshape(-1)
    shown = known.row >= 0
    renumbered = np.full(len(numbers), -1, np.int64)
    renumbered[of[shown]] = old[known.row[shown]]
    fresh = renumbered < 0
    renumbered[fresh] = int(old.max(initial=-1)) + 1 + np.arange(fresh.sum())
    return replace(candidates, columns={**candidates.columns, "image": renumbered[of]})


def _lookup(wanted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """int64: position of each value in `among`, whose values are unique; -1 where it is not there."""
    if not len(among):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(among, kind="stable")
    place = np.minimum(np.searchsorted(among, wanted, sorter=order), len(among) - 1)
    found = order[place]
    return np.where(among[found] == wanted, found, -1)


def _text(value: bytes | np.integer) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _begin(base: PatchStore, plan: Plan) -> None:
    """Leave the plan in the store, or find there that of the run to go on with. Raises StoreError for another's."""
    path = base.path / APPENDING
    if path.exists():
        try:
            other = json.loads(path.read_bytes())
        except ValueError:
            other = None
        committed = isinstance(other, dict) and other.get("store") != base.fingerprint
        if committed and any(done.source_key == source_key(other) for done in base.manifest.appends):
            _end(base.path, base.manifest)  # killed between the manifest and the clearing away
        elif other != plan.source:
            raise StoreError(
                f"{base.path} has an unfinished append that differs in: {differing_parts(plan.source, other)}. Finish "
                f"it with the same call, or give it up by deleting {path}."
            )
    if not path.exists():
        _clear_shards(base.path, base.manifest)
        write_atomic(path, json.dumps(plan.source).encode())
    for folder in (base.path, base.path / SHARDS, base.path / COLUMNS, base.path / PAIRS):
        remove_partials(folder)


def _end(store: Path, manifest: Manifest) -> None:
    """Clear away what the append needed besides the store."""
    _clear_shards(store, manifest)
    (store / APPENDING).unlink(missing_ok=True)


def _clear_shards(store: Path, manifest: Manifest) -> None:
    """Remove the records of shards, and shards of an append that was given up."""
    named = {entry.file for entry in manifest.files()}
    for path in (store / SHARDS).iterdir():
        if f"{SHARDS}/{path.name}" not in named:
            path.unlink()


def _clear_columns(manifest: Manifest, before: PatchStore) -> None:
    """Remove columns, pairs and rejects of older manifests. Those of the last one stay, for those who have it open."""
    named = {entry.file for each in (manifest, before.manifest) for entry in each.files()}
    store = before.path
    for path in (*store.glob("rejects*.csv"), *(store / COLUMNS).iterdir(), *(store / PAIRS).glob("*")):
        if path.relative_to(store).as_posix() not in named:
            path.unlink()
