"""Finished shards become a patch store: row numbers, columns, reject list, pairs, and last of all the manifest."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hardmine.pipeline.ingest_plan import Plan
from hardmine.pipeline.shards import ShardRecord
from hardmine.pipeline.splits import SPLITS
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
    Shard,
    StoredFile,
    rejects_to_csv,
)


def commit(store: Path, plan: Plan, records: Sequence[ShardRecord]) -> Manifest:
    """Write everything besides the shards. Row numbers are the prefix sums of what the shards kept. May be repeated
    after a crash: the store exists from the moment the manifest does."""
    kept = np.ones(len(plan.order), bool)
    rejects = [(reject.source, reject.reason) for reject in plan.candidates.rejects]
    for record in records:
        for item in record.rejects:
            kept[record.start + item.position] = False
            rejects.append((item.source.encode("latin1"), item.reason))
    numbers = plan.order[kept]  # candidate number of each row
    columns = _columns(plan, numbers)
    pairs = _pairs(store, plan, numbers)
    manifest = Manifest(
        kind=plan.kind,
        options=plan.options,
        policy=plan.candidates.policy,
        rows=len(numbers),
        pixel_shape=plan.candidates.pixel_shape,
        classes=plan.classes,
        splits=list(SPLITS) if plan.split else [],
        shards=[
            Shard(file=f"{SHARDS}/{number:06}.h5", bytes=r.bytes, sha256=r.sha256, rows=r.rows)
            for number, r in enumerate(records)
        ],
        columns={
            name: Column(dtype=values.dtype.str, **_write(store, f"{COLUMNS}/{name}.npy", _npy(values)).model_dump())
            for name, values in columns.items()
        },
        pairs=pairs,
        rejects=_write(store, REJECTS, rejects_to_csv(rejects)),
        counts=_counts(plan, columns, pairs, len(rejects)),
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


def _columns(plan: Plan, numbers: np.ndarray) -> dict[str, np.ndarray]:
    label = plan.label[numbers]  # ascending
    size = np.bincount(label, minlength=plan.classes)
    rank = np.arange(len(label)) - (np.cumsum(size) - size)[label]
    used = size[label] >= plan.min_per_class
    if plan.max_per_class is not None:
        used &= rank < plan.max_per_class
    columns = {
        "label": label,
        "raw_label": plan.candidates.raw_label[numbers],
        "source": plan.candidates.source[numbers],
        "used": used,
    }
    if plan.split:
        columns["split"] = plan.class_split()[label]
    return columns | {name: values[numbers] for name, values in plan.candidates.columns.items()}


def _pairs(store: Path, plan: Plan, numbers: np.ndarray) -> list[Pairs]:
    row_of = np.full(len(plan.order), -1, np.int64)
    row_of[numbers] = np.arange(len(numbers))
    written = []
    for name, pair in plan.candidates.pairs.items():
        table = np.column_stack([row_of[pair.first], row_of[pair.second], pair.match.astype(np.int64)])
        table = table[(table[:, :2] >= 0).all(axis=1)]
        entry = _write(store, f"{PAIRS}/{name}.npy", _npy(table))
        written.append(Pairs(name=name, rows=len(table), lost=len(pair.first) - len(table), **entry.model_dump()))
    return written


def _counts(plan: Plan, columns: dict[str, np.ndarray], pairs: list[Pairs], rejects: int) -> dict[str, int]:
    """The table at the end of the stage: what came of every item, then what the reader has to say."""
    size = np.bincount(columns["label"], minlength=plan.classes)
    kept = len(columns["label"])
    counts = {
        "items listed": len(plan.order),
        "patches kept": kept,
        "items rejected": len(plan.order) - kept,
        "sources not listed": rejects - (len(plan.order) - kept),
        "classes": int((size > 0).sum()),
        "classes with one patch": int((size == 1).sum()),
        "classes with no patch left": int((size == 0).sum()),
        "patches set aside by class size": int((~columns["used"]).sum()),
    }
    for name, code in zip(SPLITS, range(len(SPLITS))) if plan.split else ():
        counts[f"patches in {name}"] = int((columns["split"] == code).sum())
    for entry in pairs:
        counts |= {f"pairs kept ({entry.name})": entry.rows, f"pairs lost ({entry.name})": entry.lost}
    return counts | plan.candidates.counts


def _npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(values), allow_pickle=False)
    return buffer.getvalue()


def _write(store: Path, name: str, content: bytes) -> StoredFile:
    path = store / name
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, content)
    return StoredFile(file=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
