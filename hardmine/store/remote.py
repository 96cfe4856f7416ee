"""Stores at any fsspec URL (s3://, gs://, memory://, sftp://, ...): copied there and back, and read through a cache.

A copy is verified: every file is read back from its new place and compared with the checksum that its store recorded.
What makes a store a store (the manifest; a round's attributes) goes last, so that a killed copy is no store, and the
same call goes on with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.store.files import LOCK, OWNER, PARTIAL
from hardmine.store.location import Location
from hardmine.store.manifest import MANIFEST, parse_manifest

ROUNDS, GROUP, LOG = "rounds", "zarr.json", "log.jsonl"
_THREADS = 8  # files under way at once: most of the time of a small one is waiting

Progress = Callable[[int, int], None]  # (bytes done, bytes in all); a byte is done when it is verified


@dataclass(frozen=True)
class File:
    """A file of a store: its path inside it, its size in bytes, and its checksum: hex SHA-256, or CRC-32 in decimal."""

    name: str
    size: int
    checksum: str

    def sum(self, blocks: Iterable[bytes]) -> str:
        """The checksum of some content, of the same kind as this file's."""
        if len(self.checksum) == 64:
            digest = hashlib.sha256()
            for block in blocks:
                digest.update(block)
            return digest.hexdigest()
        crc = 0
        for block in blocks:
            crc = zlib.crc32(block, crc)
        return str(crc)


@dataclass(frozen=True)
class CopyReport:
    """The end of a copy. files, bytes: of the store. there: files that were at the target already, and intact."""

    target: str
    store: str
    files: int
    bytes: int
    there: int

    def json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "store": self.store,
            "files": self.files,
            "bytes": self.bytes,
            "files_there_already": self.there,
            "verified": True,
        }


def copy_store(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, progress: Progress | None = None
) -> CopyReport:
    """Copy a patch store or a mining store (its committed rounds) between any two folders or URLs.

    A target that holds a part of it, or an earlier state of it (before an append, with fewer rounds), gets what it
    lacks. progress: called from several threads, one at a time.

    Raises MissingError if there is no store at `source`; InputError if the target is something else; StoreError if it
    is another store, or a file is damaged or cannot be read or written; DiskError if the disk is full.
    """
    here, there = Location.of(source), Location.of(target)
    manifest = here.read(MANIFEST)
    if manifest is not None:
        return _copy_patches(here, there, manifest, progress)
    if here.read(GROUP) is not None and ROUNDS in here.names():
        return _copy_rounds(here, there, progress)
    raise MissingError(f"no patch store ({MANIFEST}) and no mining store ({GROUP}, {ROUNDS}) at {here.url}")


def open_remote(url: str | os.PathLike[str], cache: Path | None = None) -> Path:
    """The local copy of a whole store of either kind, brought up to date. cache: see `cache_folder`.

    `PatchStore.open(url)` fetches no more than is used; this is for mining stores, and for working offline."""
    name = hashlib.sha256(Location.of(url).url.encode()).hexdigest()[:32]
    folder = (cache or cache_folder()) / "copies" / name
    copy_store(url, folder)
    return folder


def cache_folder() -> Path:
    """Where remote stores are cached: $HARDMINE_CACHE, else $XDG_CACHE_HOME/hardmine, else ~/.cache/hardmine."""
    own = os.environ.get("HARDMINE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hardmine"


def _copy_patches(here: Location, there: Location, content: bytes, progress: Progress | None) -> CopyReport:
    manifest = parse_manifest(content, here.url)
    before = there.read(MANIFEST)
    if before is not None and parse_manifest(before, there.url).source_key != manifest.source_key:
        raise StoreError(f"{there.url} holds another patch store: choose another place")
    files = [File(entry.file, entry.bytes, entry.sha256) for entry in manifest.files()]
    if before is None:
        _refuse_foreign(there, {file.name.split("/")[0] for file in files})
    found = copy_files(here, there, files, progress)
    if before != content:
        write_small(there, MANIFEST, content)
    return CopyReport(there.url, "patch store", len(files) + 1, sum(f.size for f in files) + len(content), found)


def _copy_rounds(here: Location, there: Location, progress: Progress | None) -> CopyReport:
    _refuse_foreign(there, {ROUNDS, GROUP, LOG})
    rounds: dict[str, bytes] = {}
    files: list[File] = []
    for number in here.names(ROUNDS):
        content = here.read(f"{ROUNDS}/{number}/{GROUP}") if re.fullmatch(r"\d{6,}", number) else None
        attrs = json.loads(content)["attributes"] if content else {}
        if content is None or not attrs.get("committed"):
            continue
        name = f"{ROUNDS}/{number}/{GROUP}"
        before = there.read(name)
        if before is not None and json.loads(before)["attributes"].get("key_hash") != attrs["key_hash"]:
            raise StoreError(f"{there.url} has another round {number}: choose another place")
        if before is not None and before != content:
            there.remove(name)  # no round until it is whole again
        rounds[name] = content
        files += round_files(number, attrs)
    found = copy_files(here, there, files, progress)
    small = {name: here.read(name) for name in (LOG, f"{ROUNDS}/{GROUP}", GROUP)} | rounds
    for name, content in small.items():
        if content is not None:
            write_small(there, name, content)
    total = sum(file.size for file in files) + sum(len(content or b"") for content in small.values())
    return CopyReport(there.url, f"mining store, {len(rounds)} rounds", len(files) + len(small), total, found)


def _refuse_foreign(there: Location, names: set[str]) -> None:
    others = [n for n in there.names() if n not in names | {LOCK, OWNER} and not n.endswith(PARTIAL)]
    if others:
        raise InputError(f"{there.url} is not empty ({', '.join(others[:3])}): choose another place")


def round_files(name: str, attrs: Mapping[str, Any]) -> list[File]:
    """The files of a round, by their paths in its mining store. name: of its folder. attrs: its attributes."""
    groups = attrs["files"].values()
    return [File(f"{ROUNDS}/{name}/{file}", size, str(crc)) for group in groups for file, (size, crc) in group.items()]


def copy_files(here: Location, there: Location, files: list[File], progress: Progress | None = None) -> int:
    """Copy what is not there and intact, verified; returns how many files were."""
    total, done, lock = sum(file.size for file in files), 0, threading.Lock()
    sizes = there.sizes()

    def one(file: File) -> bool:
        nonlocal done
        intact = sizes.get(file.name) == file.size and file.sum(there.blocks(file.name)) == file.checksum
        if not intact:
            copy_file(here, there, file)
            if file.sum(there.blocks(file.name)) != file.checksum:
                raise StoreError(f"{there.url}/{file.name} is not what was written to it: copy again")
        with lock:
            done += file.size
            if progress:
                progress(done, total)
        return intact

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            return sum(pool.map(one, files))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def copy_file(here: Location, there: Location, file: File) -> None:
    """Copy one file, comparing what is read with its checksum before the copy gets its name (on a local disk)."""
    with there.writing(file.name) as output:

        def passing() -> Iterator[bytes]:
            for block in here.blocks(file.name):
                output.write(block)
                yield block

        if file.sum(passing()) != file.checksum:
            raise StoreError(f"{here.url}/{file.name} is damaged: its checksum is not the recorded one")


def write_small(there: Location, name: str, content: bytes) -> None:
    """Write one small file and read it back."""
    with there.writing(name) as output:
        output.write(content)
    if there.read(name) != content:
        raise StoreError(f"{there.url}/{name} is not what was written to it: copy again")
