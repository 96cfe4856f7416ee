"""Finished shards become a patch store: row numbers, columns, reject list, pairs, and last of all the manifest."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from hardmine.pipeline.ingest_plan import Plan
from hardmine.pipeline.pictures import POLICY as PICTURE_POLICY
from hardmine.pipeline.readers.base import Pair
from hardmine.pipeline.shards import ShardRecord
from hardmine.pipeline.splits import NONE
from hardmine.store.files import write_atomic
from hardmine.store.manifest import (
    COLUMNS,
    MANIFEST,
    PAIRS,
    REJECTS,
    SHARDS,
    UNFINISHED,
    Column,
    Manifest,
    Pairs,
    StoredFile,
    rejects_to_csv,
)

_FLUSHES = 4  # columns written at once: a flush to the disk is waiting, and a disk does several in the time of one


def commit(store: Path, plan: Plan, records: Sequence[ShardRecord]) -> Manifest:
    """Write everything besides the shards. Row numbers are the prefix sums of what the shards kept. May be repeated
    after a crash: the store exists from the moment the manifest does."""
    numbers, item_rejects = outcome(plan, records)
    rejects = [(reject.source, reject.reason) for reject in plan.candidates.rejects] + item_rejects
    columns = columns_of(plan, numbers)
    columns["used"] = within_limits(columns["label"], plan.classes, plan.min_per_class, plan.max_per_class)
    row_of = np.full(len(plan.candidates.source), -1, np.int64)
    row_of[numbers] = np.arange(len(numbers))
    pairs = []
    for name, pair in plan.candidates.pairs.items():
        table, lost = pair_table(pair, row_of)
        pairs.append(write_pairs(store, f"{PAIRS}/{name}.npy", name, table, int(lost.sum())))
    splits = [] if plan.splits is None else plan.splits.names
    files = [f"{COLUMNS}/{name}.npy" for name in columns]
    with ThreadPoolExecutor(_FLUSHES) as pool:
        written = list(pool.map(partial(write_column, store), files, columns.values()))
    counts = count(columns, plan.classes, splits, pairs, len(item_rejects), len(rejects))
    manifest = Manifest(
        kind=plan.kind,
        options=plan.options,
        policy=plan.candidates.policy if plan.form.pictures is None else PICTURE_POLICY,
        rows=len(numbers),
        pixel_shape=plan.form.pixel_shape,
        shards_kind=plan.form.kind,
        pictures=plan.form.picture_options,
        classes=plan.classes,
        splits=splits,
        shards=[record.shard() for record in records],
        columns=dict(zip(columns, written)),
        pairs=pairs,
        rejects=write_file(store, REJECTS, rejects_to_csv(rejects)),
        counts=counts | plan.candidates.counts | added_up(records),
        source=plan.source,
        source_key=plan.key,
    )
    write_atomic(store / MANIFEST, manifest.to_bytes())
    return manifest


def discard_leftovers(store: Path) -> None:
    """After the commit: remove the plan and the shards' records."""
    for path in (store / SHARDS).glob("*.json"):
        path.unlink()
    (store / UNFINISHED).unlink(missing_ok=True)


def discard_unfinished(store: Path) -> None:
    """Remove all that an ingest without a commit has written."""
    for folder in (SHARDS, COLUMNS, PAIRS):
        if (store / folder).exists():
            shutil.rmtree(store / folder)
    for name in (REJECTS, UNFINISHED):
        (store / name).unlink(missing_ok=True)


def outcome(plan: Plan, records: Sequence[ShardRecord]) -> tuple[np.ndarray, list[tuple[bytes, str]]]:
    """Candidate numbers int64 of the items that the shards kept, in the order of their rows; (source, reason) of those
    they rejected."""
    kept = np.ones(len(plan.order), bool)
    rejects = []
    for record in records:
        for item in record.rejects:
            kept[record.start + item.position] = False
            rejects.append((item.source.encode("latin1"), item.reason))
    return plan.order[kept], rejects


def columns_of(plan: Plan, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Every column but `used`, for the candidates `numbers`."""
    candidates = plan.candidates
    columns = {"label": plan.label, "raw_label": candidates.raw_label, "source": candidates.source}
    if plan.splits is not None:
        columns["split"] = plan.splits.codes
    return {name: values[numbers] for name, values in (columns | candidates.columns).items()}


def within_limits(label: np.ndarray, classes: int, least: int, most: int | None) -> np.ndarray:
    """bool (N,), the column `used`: whether the item's class has `least` items, and it is among the first `most`."""
    size = np.bincount(label, minlength=classes)
    used = size[label] >= least
    if most is not None:
        order = np.argsort(label, kind="stable")
        rank = np.empty(len(label), np.int64)
        rank[order] = np.arange(len(label)) - (np.cumsum(size) - size)[label[order]]
        used &= rank < most
    return used


def pair_table(pair: Pair, row_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64 (kept, 3): row, row, match; and bool (P,): pairs lost, since a row (by candidate number) is -1."""
    table = np.column_stack([row_of[pair.first], row_of[pair.second], pair.match.astype(np.int64)])
    lost = np.asarray((table[:, :2] < 0).any(axis=1))
    return table[~lost], lost


def count(
    columns: dict[str, np.ndarray], classes: int, splits: list[str], pairs: list[Pairs], rejected: int, rejects: int
) -> dict[str, int]:
    """The table at the end of the stage: what came of every item. rejected: items; rejects: those, and sources that
    could not even be listed."""
    size = np.bincount(columns["label"], minlength=classes)
    kept = len(columns["label"])
    counts = {
        "items listed": kept + rejected,
        "patches kept": kept,
        "items rejected": rejected,
        "sources not listed": rejects - rejected,
        "classes": int((size > 0).sum()),
        "classes with one patch": int((size == 1).sum()),
        "classes with no patch left": int((size == 0).sum()),
        "patches set aside by class size": int((~columns["used"]).sum()),
    }
    for code, name in enumerate(splits):
        counts[f"patches in {name}"] = int((columns["split"] == code).sum())
    if splits and (columns["split"] == NONE).any():
        counts["patches in no split"] = int((columns["split"] == NONE).sum())
    for entry in pairs:
        counts |= {f"pairs kept ({entry.name})": entry.rows, f"pairs lost ({entry.name})": entry.lost}
    return counts


def added_up(records: Sequence[ShardRecord]) -> dict[str, int]:
    """What the picture policy did, over all shards."""
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.counts)
    return dict(sorted(total.items()))


def write_column(store: Path, file: str, values: np.ndarray) -> Column:
    """Write one column and return its entry."""
    return Column(dtype=values.dtype.str, **write_file(store, file, _npy(values)).model_dump())


def write_pairs(store: Path, file: str, name: str, table: np.ndarray, lost: int) -> Pairs:
    """Write one pair list and return its entry."""
    return Pairs(name=name, rows=len(table), lost=lost, **write_file(store, file, _npy(table)).model_dump())


def write_file(store: Path, file: str, content: bytes) -> StoredFile:
    """Write one file of the store and return its entry."""
    path = store / file
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, content)
    return StoredFile(file=file, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(values), allow_pickle=False)
    return buffer.getvalue()
