"""What an ingest is going to do, fixed before the first shard: the order of the items, their classes, and a key by
which an interrupted or repeated ingest is recognised."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardmine.errors import HardmineError, InputError
from hardmine.pipeline.readers.base import Candidates
from hardmine.pipeline.splits import Split
from hardmine.store.manifest import FORMAT

_RESERVED = {"label", "raw_label", "source", "used", "split"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Plan:
    """order: int64 (N,) candidate numbers by (raw label, number); shards are slices of it. label: int64 (N,) in
    0..classes-1 by candidate number. source: what the result depends on, part by part; key: hex SHA-256 of it."""

    kind: str
    options: dict[str, Any]
    candidates: Candidates
    order: np.ndarray
    label: np.ndarray
    classes: int
    split: Split | None
    min_per_class: int
    max_per_class: int | None
    source: dict[str, Any]

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.source, sort_keys=True).encode()).hexdigest()

    def class_split(self) -> np.ndarray:
        """uint8 (classes,): position in SPLITS. A matter of the listed classes alone, whatever is rejected later."""
        if self.split is None:
            raise HardmineError("this plan has no split")
        return self.split.codes(self.label, self.classes, self.candidates.columns.get("image"))


def make_plan(
    kind: str,
    src: Path,
    options: dict[str, Any],
    candidates: Candidates,
    split: Split | None,
    min_per_class: int,
    max_per_class: int | None,
    shard_rows: int,
) -> Plan:
    """Raises InputError where the limits contradict each other or the split leaves one side empty."""
    if min_per_class < 1 or shard_rows < 1 or (max_per_class is not None and max_per_class < min_per_class):
        raise InputError(
            f"min_per_class {min_per_class}, max_per_class {max_per_class}, shard_rows {shard_rows}: each must be at "
            "least 1, and the largest class size not below the smallest"
        )
    _check(kind, candidates)
    raw, label = np.unique(candidates.raw_label, return_inverse=True)
    source = {
        "format": FORMAT,
        "kind": kind,
        "options": options,
        "split": None if split is None else str(split),
        "class size limits": [min_per_class, max_per_class],
        "shard rows": shard_rows,
        "source files": _files_digest(src, candidates.files),
        "listed items": _items_digest(candidates),
    }
    label = label.reshape(-1).astype(np.int64)
    order = np.argsort(label, kind="stable").astype(np.int64)
    plan = Plan(kind, options, candidates, order, label, len(raw), split, min_per_class, max_per_class, source)
    if split is not None:
        plan.class_split()  # before an hour of reading, not after it
    return plan


def differing_parts(plan: Plan, other: Any) -> str:
    """Which parts of the recorded `other` source differ from the plan's, in words."""
    if not isinstance(other, dict):
        return "everything"
    return ", ".join(part for part, value in plan.source.items() if other.get(part) != value) or "nothing"


def _check(kind: str, candidates: Candidates) -> None:
    """Hold a reader to its contract."""
    count = len(candidates.source)
    problems = []
    if candidates.raw_label.dtype != np.int64 and candidates.raw_label.dtype.kind != "S":
        problems.append(f"raw labels are {candidates.raw_label.dtype}, not int64 or bytes")
    if candidates.source.dtype.kind != "S" and count:
        problems.append(f"sources are {candidates.source.dtype}, not bytes")
    elif len(np.unique(candidates.source)) != count:
        problems.append("sources are not unique")
    for name, values in {"raw_label": candidates.raw_label, **candidates.columns}.items():
        if len(values) != count:
            problems.append(f"column {name!r} has {len(values)} values for {count} items")
    problems += [
        f"column name {n!r} is not usable" for n in candidates.columns if n in _RESERVED or not _NAME.fullmatch(n)
    ]
    for name, pair in candidates.pairs.items():
        numbers = np.concatenate([pair.first, pair.second])
        if not _NAME.fullmatch(name) or not len(pair.first) == len(pair.second) == len(pair.match):
            problems.append(f"pair list {name!r} has an unusable name or columns of unequal length")
        elif len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
            problems.append(f"pair list {name!r} names items that do not exist")
    if problems:
        raise HardmineError(f"the reader {kind!r} broke its contract: {'; '.join(problems)}")


def _files_digest(src: Path, files: list[Path]) -> str:
    """Over names (relative to `src`), sizes and modification times."""
    digest = hashlib.sha256()
    for path in files:
        status = path.stat()
        digest.update(os.fsencode(os.path.relpath(path, src)))
        digest.update(b"\0%d %d\n" % (status.st_size, status.st_mtime_ns))
    return digest.hexdigest()


def _items_digest(candidates: Candidates) -> str:
    digest = hashlib.sha256()
    arrays = {"raw_label": candidates.raw_label, "source": candidates.source, **candidates.columns}
    for name, pair in candidates.pairs.items():
        arrays |= {f"{name} {part}": getattr(pair, part) for part in ("first", "second", "match")}
    for name, values in arrays.items():
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    digest.update(repr((candidates.pixel_shape, candidates.rejects, candidates.counts)).encode())
    return digest.hexdigest()
