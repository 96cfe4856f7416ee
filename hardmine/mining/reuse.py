"""After an append: the descriptors of rows that were there before are copied from the round that has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardmine.errors import StoreError
from hardmine.mining.entries import Entries
from hardmine.store.fingerprint import Key, shards_digest
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import MiningStore, Round


@dataclass(frozen=True)
class Earlier:
    """A committed round of an earlier state of the same patch store. entry: int64 (M,), its entry that is the same
    (row, view) as each of the M new ones, -1 where it has none."""

    round: Round
    entry: np.ndarray


def find_earlier(
    target: MiningStore, key: Key, store: PatchStore, entries: Entries, how: Mapping[str, Any], messages: list[str]
) -> Earlier | None:
    """The committed round that differs from `key` in the patches alone, whose patch store's shards `store` begins with,
    and that was embedded in the same way; of several, the one with the most shards.

    Rows never move in an append and a view's angle depends on (row, view) alone, so equal entries have equal pixels.
    What is damaged is not used, and said in `messages`.
    """
    candidates = []
    for each in target.rounds():
        shards, manner = each.attrs.get("patch_shards"), each.attrs["how"]
        if shards is None or {**each.key, "patches": key["patches"]} != key:
            continue
        if any(manner.get(name) != how.get(name) for name in ("batch", "device", "compile")):
            continue
        if shards == shards_digest(store.shard_fingerprints[: shards["count"]]):
            candidates.append((shards["count"], each.number, each))
    for _, _, each in sorted(candidates, reverse=True, key=lambda c: c[:2]):
        try:
            each.check_files()
            return Earlier(each, _matching(each, entries))
        except StoreError as error:
            messages.append(f"nothing was copied from round {each.number}: {error}")
    return None


def _matching(earlier: Round, entries: Entries) -> np.ndarray:
    theirs = (earlier.entry_row << 16) + earlier.entry_view
    wanted = (entries.row << 16) + entries.view
    order = np.argsort(theirs)
    place = order[np.minimum(np.searchsorted(theirs, wanted, sorter=order), len(theirs) - 1)]
    return np.where(theirs[place] == wanted, place, -1)
