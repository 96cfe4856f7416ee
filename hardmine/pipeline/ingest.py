"""`ingest`: a raw data set becomes a patch store, in shards that can be written apart and resumed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardmine.errors import InputError, StoreError, UnknownNameError
from hardmine.options import check
from hardmine.pipeline.commit import commit, discard_leftovers, discard_unfinished
from hardmine.pipeline.formats import choose_format
from hardmine.pipeline.ingest_plan import Plan, differing_parts, make_plan
from hardmine.pipeline.readers.base import Candidates, Reader, readers
from hardmine.pipeline.shard_run import Where, write_shards
from hardmine.pipeline.shards import OnBad, ShardRecord, ShardTask, bad_item, write_shard
from hardmine.pipeline.splits import parse_split
from hardmine.store.files import LOCK, OWNER, PARTIAL, remove_partials, write_atomic, write_lock
from hardmine.store.manifest import COLUMNS, MANIFEST, PAIRS, SHARDS, UNFINISHED, Manifest
from hardmine.store.patches import PatchStore

__all__ = ["IngestReport", "ShardRecord", "ShardTask", "ingest", "write_shard"]


@dataclass(frozen=True)
class IngestReport:
    """The end of an ingest. path: the store; written: False if the same store was there already; resumed: shards that
    an interrupted run had finished; counts: what came of every item, in the order to print; reasons: rejects by reason,
    the most frequent first."""

    path: Path
    written: bool
    resumed: int
    counts: dict[str, int]
    reasons: dict[str, int]

    def json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        state = "written" if self.written else "there already, nothing to do"
        return {"state": state, "resumed_shards": self.resumed, **self.counts, "reject_reasons": self.reasons}


def ingest(
    kind: str,
    src: str | Path,
    store: str | Path,
    *,
    options: dict[str, Any] | None = None,
    on_bad: OnBad = "skip",
    split: str | None = None,
    seed: int = 0,
    min_per_class: int = 1,
    max_per_class: int | None = None,
    shards: str | None = None,
    pictures: dict[str, Any] | None = None,
    shard_rows: int | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    in_flight: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> IngestReport:
    """Make the patch store `store` from the data set in `src`, laid out as `kind` says (`readers.names()`).

    Items are sorted by raw label, then cut into slices of `shard_rows`, one shard each. A killed run is finished by the
    same call; the same call on a finished store writes nothing. Same source and options give the same bytes.

    options: of the reader. on_bad: "skip" lists bad items in rejects.csv, "fail" stops at the first. split: None is the
    data set's own splits where it has any, "column" asks for them; "by-class:0.8" keeps that fraction of the classes
    that it would train on, chosen by `seed`, in `train` and puts the others into `val`; "by-image:0.8" does so with
    whole photographs, "by-item:0.85" with the items of each class.
    min_per_class, max_per_class: patches of smaller classes, and those past the first max_per_class of a class, are
    stored but not `used`. shards: "hdf5" or "webdataset"; None is hdf5 for patches, webdataset for images. pictures:
    options of `PicturePolicy`, for a data set of images. shard_rows: None is at most 32,768 patches (128 MiB) or 4096
    images. workers, scheduler, in_flight: where shards are written, see `run_tasks`; the bytes do not depend on it. In
    this process one is written while the next is read, so that the pixels of two are in memory, in workers of one each.
    progress: called with (items done, items in all).

    Raises UnknownNameError (kind, option, split rule), InputError (the source, an option, a bad item under "fail",
    nothing left, a folder that is something else), MissingError, StoreError (the folder holds another ingest),
    LockedError, DiskError, WorkerError.
    """
    src, store, where = Path(src), Path(store), Where(workers, scheduler, in_flight)
    reader, chosen = open_reader(kind, src, options, on_bad, scheduler)
    rule = parse_split(split, seed)
    _refuse_foreign(store)
    candidates = list_items(reader, on_bad)
    form = choose_format(candidates, shards, pictures)
    if not len(candidates.source):
        raise _nothing_left(0, [reject.reason for reject in candidates.rejects], src)
    shard_rows = form.shard_rows if shard_rows is None else shard_rows
    plan = make_plan(kind, src, chosen, candidates, form, rule, min_per_class, max_per_class, shard_rows)
    with write_lock(store, "the patch store"):
        if (store / MANIFEST).exists():
            return _already_there(store, plan, on_bad)
        _begin(store, plan)
        records, resumed = write_shards(reader, src, store, plan, shard_rows, on_bad, where, progress)
        if not any(record.rows for record in records):
            discard_unfinished(store)
            reasons = [reject.reason for reject in candidates.rejects]
            reasons += [item.reason for record in records for item in record.rejects]
            raise _nothing_left(len(plan.order), reasons, src)
        manifest = commit(store, plan, records)
        discard_leftovers(store)
    return _report(store, manifest, written=True, resumed=resumed)


def open_reader(
    kind: str, src: Path, options: dict[str, Any] | None, on_bad: OnBad, scheduler: str | None
) -> tuple[Reader, dict[str, Any]]:
    """The reader of `kind` over `src`, and its options, defaults included, as JSON. Raises UnknownNameError (kind,
    option, policy), InputError (the value of an option)."""
    if on_bad not in ("skip", "fail"):
        raise UnknownNameError("on_bad policy", on_bad, ["skip", "fail"])
    reader_class = readers.get(kind)
    chosen = check(reader_class.Options, options or {}, f"options of {kind}")
    return reader_class(src if scheduler is None else src.absolute(), chosen), chosen.model_dump(mode="json")


def list_items(reader: Reader, on_bad: OnBad) -> Candidates:
    """What the reader lists. Raises what it raises, and InputError for the first reject under on_bad "fail"."""
    candidates = reader.candidates()
    if on_bad == "fail" and candidates.rejects:
        raise bad_item(candidates.rejects[0])
    return candidates


def _refuse_foreign(store: Path) -> None:
    """Raise InputError if `store` is neither absent, nor empty, nor a finished or unfinished patch store."""
    if not store.exists():
        return
    if not store.is_dir():
        raise InputError(f"{store} is a file: choose a folder for the patch store")
    if (store / MANIFEST).exists() or (store / UNFINISHED).exists():
        return
    others = [p.name for p in store.iterdir() if p.name not in (LOCK, OWNER) and not p.name.endswith(PARTIAL)]
    if others:
        raise InputError(
            f"{store} is not empty and no patch store (it has {', '.join(sorted(others)[:3])}): choose another folder"
        )


def _begin(store: Path, plan: Plan) -> None:
    """Leave the plan in the folder, or find there that of the run to go on with. Raises StoreError for another's."""
    path = store / UNFINISHED
    if path.exists():
        try:
            other = json.loads(path.read_bytes())
        except ValueError:
            other = None
        if other != plan.source:
            raise StoreError(
                f"{store} holds an unfinished ingest that differs in: {differing_parts(plan.source, other)}. "
                "Delete the folder, or choose another."
            )
    else:
        write_atomic(path, json.dumps(plan.source).encode())
    for folder in (store, store / SHARDS, store / COLUMNS, store / PAIRS):
        remove_partials(folder)


def _already_there(store: Path, plan: Plan, on_bad: OnBad) -> IngestReport:
    manifest = PatchStore.open(store).manifest
    if manifest.source_key != plan.key:
        raise StoreError(
            f"{store} is a patch store already, and differs in: {differing_parts(plan.source, manifest.source)}. "
            "Delete the folder, choose another, or add what is new to it (append)."
        )
    if (store / UNFINISHED).exists():
        discard_leftovers(store)
    report = _report(store, manifest, written=False, resumed=0)
    if on_bad == "fail" and report.reasons:
        raise InputError(f"{store} is there already, and {sum(report.reasons.values())} items were left out of it")
    return report


def _report(store: Path, manifest: Manifest, *, written: bool, resumed: int) -> IngestReport:
    reasons = Counter(reason for _, reason in PatchStore(store, manifest).rejects())
    return IngestReport(store, written, resumed, manifest.counts, dict(reasons.most_common()))


def _nothing_left(count: int, reasons: Iterable[str], src: Path) -> InputError:
    frequent = "; ".join(f"{reason} ({times} times)" for reason, times in Counter(reasons).most_common(3))
    return InputError(f"no patch left (0 of {count}) from {src}: {frequent or 'no item found'}")
