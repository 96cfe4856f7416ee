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
from hardmine.pipeline.formats import Format
from hardmine.pipeline.readers.base import Candidates
from hardmine.pipeline.splits import Items, Split, Splits, assign, choose
from hardmine.store.manifest import FORMAT

_RESERVED = {"label", "raw_label", "source", "used", "split"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Plan:
    """order: int64 (M,) the candidates to store, by (label, number); shards are slices of it. label: int64 (N,) in
    0..classes-1 by candidate number. splits: of every candidate, a matter of what is listed, whatever is rejected
    later; or None. source: what the result depends on, part by part; key: hex SHA-256 of it."""

    kind: str
    options: dict[str, Any]
    candidates: Candidates
    form: Format
    order: np.ndarray
    label: np.ndarray
    classes: int
    splits: Splits | None
    min_per_class: int
    max_per_class: int | None
    source: dict[str, Any]

    @property
    def key(self) -> str:
        return source_key(self.source)


def source_key(source: dict[str, Any]) -> str:
    """Hex SHA-256 of what a result depends on."""
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()


def make_plan(
    kind: str,
    src: Path,
    options: dict[str, Any],
    candidates: Candidates,
    form: Format,
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
    check_candidates(kind, candidates)
    raw, label = np.unique(candidates.raw_label, return_inverse=True)
    label = label.reshape(-1).astype(np.int64)
    split = choose(split, candidates.split)
    splits = None  # drawn before an hour of reading, not after it
    if split is not None:
        splits = assign(split, Items(label, candidates.columns.get("image"), candidates.split))
    source = {
        "format": FORMAT,
        "kind": kind,
        "options": options,
        **form.source(),
        "split": None if split is None else str(split),
        "class size limits": [min_per_class, max_per_class],
        "shard rows": shard_rows,
        **listing_digests(src, candidates),
    }
    order = np.argsort(label, kind="stable").astype(np.int64)
    return Plan(kind, options, candidates, form, order, label, len(raw), splits, min_per_class, max_per_class, source)


def listing_digests(src: Path, candidates: Candidates) -> dict[str, str]:
    """The parts of a plan's source that stand for the raw files and for what was listed in them."""
    return {"source files": _files_digest(src, candidates.files), "listed items": _items_digest(candidates)}


def differing_parts(source: dict[str, Any], other: Any) -> str:
    """Which parts of the recorded `other` source differ from `source`, in words."""
    if not isinstance(other, dict):
        return "everything"
    return ", ".join(part for part, value in source.items() if other.get(part) != value) or "nothing"


def check_candidates(kind: str, candidates: Candidates) -> None:
    """Hold a reader to its contract. Raises HardmineError saying where it broke it."""
    count = len(candidates.source)
    problems = []
    if candidates.raw_label.dtype != np.int64 and candidates.raw_label.dtype.kind != "S":
        problems.append(f"raw labels are {candidates.raw_label.dtype}, not int64 or bytes")
    if candidates.source.dtype.kind != "S" and count:
        problems.append(f"sources are {candidates.source.dtype}, not bytes")
    elif len(np.unique(candidates.source)) != count:
        problems.append("sources are not unique")
    columns = {"raw_label": candidates.raw_label, **candidates.columns}
    if candidates.split is not None:
        columns["split"] = candidates.split
        if candidates.split.dtype.kind != "S":
            problems.append(f"splits are {candidates.split.dtype}, not bytes")
    for name, values in columns.items():
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
    if candidates.split is not None:
        arrays["split"] = candidates.split
    for name, pair in candidates.pairs.items():
        arrays |= {f"{name} {part}": getattr(pair, part) for part in ("first", "second", "match")}
    for name, values in arrays.items():
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    digest.update(repr((candidates.pixel_shape, candidates.rejects, candidates.counts)).encode())
    return digest.hexdigest()
