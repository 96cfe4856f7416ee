"""The end of an append: old and new columns, pairs and rejects become one, and the manifest is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardmine.errors import StoreError
from hardmine.pipeline import commit as fresh
from hardmine.pipeline.ingest_plan import Plan
from hardmine.pipeline.pictures import POLICY as PICTURE_POLICY
from hardmine.pipeline.shards import ShardRecord
from hardmine.store.files import write_atomic
from hardmine.store.manifest import COLUMNS, MANIFEST, PAIRS, Append, Manifest, Pairs, rejects_to_csv
from hardmine.store.patches import PatchStore


@dataclass(frozen=True)
class Known:
    """row: int64 (N,) by candidate number, the row of an item that the store has, -1 for the others. rejected: bool
    (N,), items that the store lists as rejected; they are tried again."""

    row: np.ndarray
    rejected: np.ndarray


def commit_append(base: PatchStore, plan: Plan, records: Sequence[ShardRecord], known: Known) -> Manifest | None:
    """Write the columns, pairs and rejects of the whole under new names, then the manifest. None, and nothing written,
    if there is nothing to say: no item was added and the same ones were rejected as before."""
    numbers, item_rejects = fresh.outcome(plan, records)
    rejects = _rejects(base, plan, item_rejects)
    if not len(numbers) and sorted(rejects) == sorted(base.rejects()):
        return None
    old, mark = base.manifest, f"-{len(base.manifest.appends) + 1:06}"
    columns = _columns(base, plan, numbers)
    row_of = known.row.copy()
    row_of[numbers] = len(base) + np.arange(len(numbers))
    pairs = _pairs(base, plan, row_of, known.rejected, mark)
    splits = [] if plan.splits is None else plan.splits.names
    rejected = old.counts["items rejected"] - int(known.rejected.sum()) + len(item_rejects)
    counts = fresh.count(columns, plan.classes, splits, pairs, rejected, len(rejects))
    pictures = {name: old.counts.get(name, 0) + value for name, value in fresh.added_up(records).items()}
    policy = plan.candidates.policy if plan.form.pictures is None else PICTURE_POLICY
    added = Append(
        kind=plan.kind,
        options=plan.options,
        policy=policy,
        first_row=len(base),
        rows=len(numbers),
        first_shard=len(old.shards),
        source=plan.source,
        source_key=plan.key,
    )
    manifest = old.model_copy(
        update={
            "rows": len(base) + len(numbers),
            "classes": plan.classes,
            "splits": splits,
            "shards": [*old.shards, *(record.shard() for record in records)],
            "columns": {
                name: fresh.write_column(base.path, f"{COLUMNS}/{name}{mark}.npy", v) for name, v in columns.items()
            },
            "pairs": pairs,
            "rejects": fresh.write_file(base.path, f"rejects{mark}.csv", rejects_to_csv(rejects)),
            "counts": old.counts | counts | plan.candidates.counts | pictures,
            "appends": [*old.appends, added],
        }
    )
    write_atomic(base.path / MANIFEST, manifest.to_bytes())
    return manifest


def stored(base: PatchStore, name: str) -> np.ndarray:
    """A column that every row of the store has. Raises StoreError where it does not."""
    values = base.column(name)
    if values is None:
        raise StoreError(f"{base.path} has no column {name!r}: it is damaged, ingest the data set again")
    return values


def _columns(base: PatchStore, plan: Plan, numbers: np.ndarray) -> dict[str, np.ndarray]:
    added = fresh.columns_of(plan, numbers)
    columns = {name: np.concatenate([stored(base, name), values]) for name, values in added.items()}
    columns["used"] = fresh.within_limits(columns["label"], plan.classes, plan.min_per_class, plan.max_per_class)
    return columns


def _rejects(base: PatchStore, plan: Plan, item_rejects: list[tuple[bytes, str]]) -> list[tuple[bytes, str]]:
    """What was rejected before and not looked at now, then what was rejected now."""
    now = [(reject.source, reject.reason) for reject in plan.candidates.rejects] + item_rejects
    looked_at = {source for source, _ in now} | set(plan.candidates.source.tolist())
    return [(source, reason) for source, reason in base.rejects() if source not in looked_at] + now


def _pairs(base: PatchStore, plan: Plan, row_of: np.ndarray, was_rejected: np.ndarray, mark: str) -> list[Pairs]:
    """Every list of the store with the pairs that are new to it, then the lists that it did not have."""
    there = {entry.name: entry for entry in base.manifest.pairs}
    entries = dict(there)
    for name, pair in plan.candidates.pairs.items():
        table, lost = fresh.pair_table(pair, row_of)
        count = int(lost.sum())
        if name in there:
            before = np.load(base.path / Path(there[name].file), allow_pickle=False)
            width = int(row_of.max(initial=0)) + len(base) + 1
            new = ~np.isin(table[:, 0] * width + table[:, 1], before[:, 0] * width + before[:, 1])
            table = np.concatenate([before, table[new]])
            # Pairs with an item that was rejected before are counted as lost there already.
            count += there[name].lost - int((was_rejected[pair.first] | was_rejected[pair.second]).sum())
            if count == there[name].lost and len(table) == len(before):
                continue
        entries[name] = fresh.write_pairs(base.path, f"{PAIRS}/{name}{mark}.npy", name, table, max(0, count))
    return list(entries.values())
