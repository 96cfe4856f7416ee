"""A round of a mining store at any path or fsspec URL: found by its attributes, fetched whole, every file verified."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.store.files import disk_errors, write_lock
from hardmine.store.location import Location
from hardmine.store.remote import GROUP, ROUNDS, Progress, copy_files, round_files, write_small
from hardmine.store.round_writer import make_root
from hardmine.store.rounds import MiningStore, Round, parse_attributes, read_attributes, remove_folder


@dataclass(frozen=True)
class FoundRound:
    """A committed round in the mining store at `place`: its number and attributes, and the bytes of its `zarr.json`."""

    place: Location
    number: int
    attrs: dict[str, Any]
    content: bytes

    def __str__(self) -> str:
        return f"round {self.number} of {self.place.url}"


def find_round(url: str | os.PathLike[str], which: int | str = "latest") -> FoundRound:
    """The committed round of that number, or the latest. One small file is read for each round that is looked at.

    Raises MissingError where there is no mining store or no such round, InputError where `which` is neither a number
    nor 'latest', or for a protocol that cannot be used, StoreError where something cannot be read."""
    place = Location.of(url)
    names = [name for name in place.names(ROUNDS) if re.fullmatch(r"\d{6,}", name)]
    if place.read(GROUP) is None or not names:
        raise MissingError(
            f"no mining store with rounds at {place.url} (looked for {GROUP} and {ROUNDS}/): copy one there with "
            "`hardmine copy`, or correct the path"
        )
    if isinstance(which, str) and which.isdigit():
        which = int(which)
    if not isinstance(which, int) and which != "latest":
        raise InputError(f"round {which!r}: give a number or 'latest'")
    for name in sorted(names, key=int, reverse=True):
        content = place.read(f"{ROUNDS}/{name}/{GROUP}") if which in ("latest", int(name)) else None
        attrs = {} if content is None else parse_attributes(content, f"{place.url}/{ROUNDS}/{name}")
        if content is not None and attrs.get("committed"):
            return FoundRound(place, int(name), attrs, content)
    raise MissingError(f"the mining store {place.url} has no committed round {which} (its rounds: {', '.join(names)})")


def fetch_round(found: FoundRound, path: Path, progress: Progress | None = None) -> Round:
    """Copy a round, under its number, into the mining store `path` on this machine, and open it there. Files that a
    killed call has fetched are kept if their checksums are right; the round is there only when all of it is.

    Raises StoreError where a file is damaged or cannot be read, or `path` has another round of that number,
    LockedError, DiskError."""
    name = f"{found.number:06d}"
    folder = path / ROUNDS / name
    with write_lock(path, "mining store"), disk_errors(f"mining store {path}"):
        make_root(path)
        there = read_attributes(folder)
        if there is not None and not there.get("committed"):
            remove_folder(folder)  # a draft; we hold the lock, so its writer is dead
            there = None
        if there is not None and there["key_hash"] != found.attrs["key_hash"]:
            raise StoreError(f"{path} has another round {found.number}: fetch {found} into another mining store")
        if there is None:
            target = Location.of(path)
            copy_files(found.place, target, round_files(name, found.attrs), progress)
            write_small(target, f"{ROUNDS}/{name}/{GROUP}", found.content)
    return MiningStore(path).open(found.number)
