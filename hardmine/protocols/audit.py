"""`audit`: from a patch store and a round of it to a table, a JSON report, contact sheets and an exclusion list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardmine.errors import InputError
from hardmine.mining.audit import AuditOptions, Progress, audit
from hardmine.mining.audit_pictures import write_sheets
from hardmine.options import check
from hardmine.store.files import disk_errors, write_atomic
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import MiningStore

REPORT, EXCLUDE = "audit.json", "exclude.json"


def audit_store(
    store: str | Path,
    mining: str | Path,
    round: int | str = "latest",
    out: Path | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Audit the patch store `store` with a round of the mining store `mining`; the counts, and what was written.

    out: a folder for `audit.json` (all findings), a PNG for each kind of finding and `exclude.json`, the exclusion
    list. options: of `AuditOptions`. Raises InputError, MissingError, StoreError, UnknownNameError, DiskError.
    """
    chosen = check(AuditOptions, options or {}, "audit")
    source, opened = MiningStore(mining).open(round), PatchStore.open(store)
    found = audit(opened, source, chosen, progress=progress)
    facts: dict[str, Any] = {"round": source.number, "split": found.split, **found.counts()}
    exclusions = found.exclusions()
    facts["rows to exclude"] = len(exclusions.rows)
    if out is None:
        return facts
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out is a folder")
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / REPORT, (json.dumps({"round": source.number, **found.json()}, indent=1) + "\n").encode())
    exclusions.write(out / EXCLUDE)
    written = [out / REPORT, out / EXCLUDE, *write_sheets(found, out)]
    return {**facts, "written": [str(path) for path in written]}
