"""Reading a whole patch store again: every file's checksum, every item decoded, shard by shard, in processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING

import numpy as np

from hardmine.errors import InputError, StoreError
from hardmine.store.files import sha256_file
from hardmine.store.manifest import StoredFile
from hardmine.store.shards import open_shards

if TYPE_CHECKING:
    from hardmine.store.patches import PatchStore


def verify(
    store: PatchStore, decode: bool, workers: int, progress: Callable[[int, int], None] | None = None
) -> list[str]:
    """See `PatchStore.verify`. Raises InputError for less than one worker."""
    if workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")
    shards = store.manifest.shards
    found: list[list[str]] = [[] for _ in shards]
    done = 0
    for number, problems in _shard_by_shard(store, decode, min(workers, len(shards))):
        found[number] = problems
        done += shards[number].rows
        if progress is not None:
            progress(done, len(store))
    own = {shard.file for shard in shards} | {shard.index.file for shard in shards if shard.index}
    others = [entry for entry in store.manifest.files() if entry.file not in own]
    return [line for lines in found for line in lines] + _damaged(store, others)


def verify_shard(store: PatchStore, number: int, decode: bool) -> list[str]:
    """One line per problem of a shard: a file that is missing or damaged, then items that cannot be decoded."""
    store.fetch(np.array([number]))
    shard = store.manifest.shards[number]
    problems = _damaged(store, [shard] + ([shard.index] if shard.index else []))
    if decode and not any(line.endswith("is missing") for line in problems):
        try:
            problems += open_shards(store.path, store.manifest).problems(number)
        except StoreError as error:
            problems.append(str(error))
    return problems


def _shard_by_shard(store: PatchStore, decode: bool, workers: int) -> Iterator[tuple[int, list[str]]]:
    """(shard number, its problems), in any order."""
    numbers = range(len(store.manifest.shards))
    if workers <= 1:
        for number in numbers:
            yield number, verify_shard(store, number, decode)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(verify_shard, store, number, decode): number for number in numbers}
        for future in as_completed(pending):
            yield pending[future], future.result()


def _damaged(store: PatchStore, entries: list[StoredFile]) -> list[str]:
    problems = []
    for entry in entries:
        path = store.path / entry.file
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif sha256_file(path) != entry.sha256:
            problems.append(f"{path} is damaged: its SHA-256 is not the one in the manifest")
    return problems
