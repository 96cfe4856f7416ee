"""Writing a round: arrays first, then the attributes that make them visible, each step safe to kill.

Everything here needs the mining store's write lock. A round grows as a draft; a draft of the same key and the same
way of embedding (batch, device, shard size) is continued after a kill, with the shards that are whole; any other
draft is dead.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec
from zarr.errors import BaseZarrError

from hardmine.errors import InputError
from hardmine.store.files import remove_partials, write_atomic
from hardmine.store.fingerprint import key_hash
from hardmine.store.rounds import (
    DERIVED,
    FORMAT,
    REMOVED,
    ROUNDS,
    MiningStore,
    Round,
    file_crc,
    read_attributes,
    remove_folder,
    round_folders,
)

SHARD_ROWS = 65_536
INNER_ROWS = 1_024
CHUNK_BYTES = 16 << 20  # of arrays that are written whole
UNKNOWN = 255  # fill value of entry_constant: neither False nor True
ENTRY_ARRAYS = ("entry_row", "entry_view", "entry_offsets")


class RoundWriter:
    """A round being written: a draft, or a committed one that gets more derived data."""

    def __init__(self, folder: Path, attrs: dict[str, Any], number: int | None = None):
        self.folder, self.attrs = folder, attrs
        self.number = int(folder.name) if number is None else number

    @classmethod
    def extend(cls, committed: Round) -> RoundWriter:
        """Add to a committed round."""
        remove_partials(committed.folder)
        return cls(committed.folder, json.loads(json.dumps(committed.attrs)))

    @classmethod
    def beside(cls, committed: Round) -> RoundWriter:
        """A place to make files of a committed round again: arrays for its shards, without content. It has the name of
        a removed round, so that what a killed repair leaves is cleared away; `adopt` takes files out of it."""
        folder = committed.folder.with_name(f"{committed.folder.name}.repair{REMOVED}")
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        writer = cls(folder, json.loads(json.dumps(committed.attrs)), committed.number)
        counts, dim = committed.attrs["counts"], committed.key["network"]["dim"]
        _create_sharded(folder, counts["entries"], dim, committed.attrs["how"]["shard_rows"])
        return writer

    def adopt(self, scratch: RoundWriter, file: str) -> bool:
        """Take a file that was made again `beside` this round. Returns False, and changes nothing, where it is not
        what was committed, to the byte."""
        made, recorded = scratch.folder / file, next(f[file] for f in self.attrs["files"].values() if file in f)
        if not made.is_file() or [made.stat().st_size, file_crc(made)] != recorded:
            return False
        (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / file, made.read_bytes())
        return True

    def absolute(self) -> RoundWriter:
        """The same, for processes with another working folder."""
        return RoundWriter(self.folder.resolve(), self.attrs, self.number)

    def round(self) -> Round:
        """The round as it stands."""
        return Round(self.folder, json.loads(json.dumps(self.attrs)))

    def put(self, name: str, values: np.ndarray, fill: float | None = None) -> None:
        """Write an array whole, replacing one of that name. It is not visible before `record` or `commit`. fill: the
        fill value; None: NaN, -1 or 0 by the kind of dtype."""
        path = self.folder / name
        if path.exists():
            shutil.rmtree(path)
        line = max(1, values.nbytes // max(1, len(values)))
        chunk = max(1, min(len(values), CHUNK_BYTES // line))
        chunks = (chunk, *(max(1, width) for width in values.shape[1:]))
        array = _create(path, values.shape, values.dtype, _fill(values) if fill is None else fill, chunks, None)
        array[...] = values

    def record(self, what: str, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
        """Write the arrays of one derivation, then its record, in this order. One already there is withdrawn first."""
        if what in self.attrs["derived"]:
            self.forget(what)
        for name, values in arrays.items():
            self.put(name, values)
        self.attrs["derived"][what] = dict(about)
        self.attrs["files"] |= {name: self._seal(name) for name in arrays}
        self.save()

    def forget(self, what: str) -> None:
        """Withdraw one derivation; its arrays are no part of the round any more."""
        del self.attrs["derived"][what]
        for name in DERIVED[what]:
            self.attrs["files"].pop(name, None)
        self.save()
        for name in DERIVED[what]:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def has_sound(self, what: str) -> bool:
        """Whether a derivation is recorded and each of its files has the recorded size and checksum."""
        if what not in self.attrs["derived"]:
            return False
        files = [self.attrs["files"].get(name, {}) for name in DERIVED[what]]
        return all(
            (self.folder / name).is_file()
            and (self.folder / name).stat().st_size == size
            and file_crc(self.folder / name) == crc
            for group in files
            for name, (size, crc) in group.items()
        )

    def commit(self, about: Mapping[str, Any]) -> Round:
        """Record the entries' and descriptors' files, flush everything to the disk, and write `committed`."""
        for name in (*ENTRY_ARRAYS, "entry_constant", "descriptors"):
            self.attrs["files"][name] = self._seal(name)
        self.attrs |= dict(about)
        self.attrs["committed"] = True
        self.save()
        return self.round()

    def save(self) -> None:
        """Write the attributes, in one step."""
        group = {"attributes": self.attrs, "node_type": "group", "zarr_format": 3}
        write_atomic(self.folder / "zarr.json", json.dumps(group, indent=1, sort_keys=True).encode())

    def shards(self) -> list[tuple[int, int]]:
        """Ranges of entries (first, last + 1): one shard, one task, one writer."""
        rows, total = self.attrs["how"]["shard_rows"], self._open("descriptors", "r").shape[0]
        return [(start, min(start + rows, total)) for start in range(0, total, rows)]

    def put_shard(self, start: int, descriptors: np.ndarray, constant: np.ndarray) -> None:
        """Write one whole shard: float32 (n, D) from entry `start` on, and bool (n,), which goes first. A file that a
        killed run left is removed before: zarr would read it, and fail where it is damaged."""
        stop, number = start + len(descriptors), start // self.attrs["how"]["shard_rows"]
        for name in (f"entry_constant/c/{number}", f"descriptors/c/{number}/0"):
            (self.folder / name).unlink(missing_ok=True)
        self._open("entry_constant", "r+")[start:stop] = constant.astype(np.uint8)
        self._open("descriptors", "r+")[start:stop] = descriptors

    def put_constant(self, start: int, constant: np.ndarray) -> None:
        """Write the constant flags of one shard alone."""
        self._open("entry_constant", "r+")[start : start + len(constant)] = constant.astype(np.uint8)

    def shard_is_sound(self, start: int, stop: int) -> bool:
        """Whether a shard is there and whole: read through its checksums, and free of fill values, which is what zarr
        returns for what is missing."""
        try:
            if not np.isfinite(self._open("descriptors", "r")[start:stop]).all():
                return False
            return not (self._open("entry_constant", "r")[start:stop] == UNKNOWN).any()
        except (OSError, ValueError, BaseZarrError):
            return False

    def _open(self, name: str, mode: str) -> Any:
        return zarr.open_array(self.folder / name, mode=mode)

    def _seal(self, name: str) -> dict[str, list[int]]:
        files = {}
        for path in sorted(p for p in (self.folder / name).rglob("*") if p.is_file()):
            if path.name.endswith(".partial"):  # of a killed write
                path.unlink()
                continue
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            files[path.relative_to(self.folder).as_posix()] = [path.stat().st_size, file_crc(path)]
        return files


def begin(
    store: MiningStore,
    key: Mapping[str, Any],
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    dim: int,
    how: Mapping[str, Any],
    shard_rows: int = SHARD_ROWS,
) -> RoundWriter:
    """The draft for this key: the one a killed run left, or a new one with the next number.

    entries: (row int64 (M,), view int16 (M,), offsets int64 (C + 1,)). how: what else decides the bits of the
    descriptors (batch, device). Drafts of anything else are removed: we hold the lock, so their writers are dead. A
    worker of theirs on another machine may outlive them, so a removed draft's number is not given to this one: what it
    still writes lands in no round. All arrays are created here, before anything is written to them. Raises InputError
    where the folder is something else.
    """
    make_root(store.path)
    how = {**how, "shard_rows": shard_rows}
    draft, there = None, round_folders(store.path)
    for folder in there:
        attrs = read_attributes(folder)
        if attrs is not None and attrs.get("committed"):
            continue
        if draft is None and attrs and attrs.get("key_hash") == key_hash(key) and attrs.get("how") == how:
            draft = RoundWriter(folder, attrs)
        else:
            remove_folder(folder)
    if draft is not None:
        remove_partials(draft.folder)
        return draft
    numbers = [int(folder.name) for folder in there]
    folder = store.path / ROUNDS / f"{max(numbers, default=0) + 1:06d}"
    folder.mkdir(parents=True)
    attrs = {"format": FORMAT, "committed": False, "key": dict(key), "key_hash": key_hash(key), "how": how}
    draft = RoundWriter(folder, attrs | {"derived": {}, "files": {}})
    for name, values in zip(ENTRY_ARRAYS, entries):
        draft.put(name, values, -1)
    _create_sharded(folder, len(entries[0]), dim, shard_rows)
    draft.save()
    return draft


def check_folder(path: Path) -> None:
    """Raises InputError where the folder holds something else than a mining store."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; a mining store is a folder")
    if path.is_dir() and not (path / ROUNDS).is_dir() and any(each.name[0] != "." for each in path.iterdir()):
        raise InputError(f"{path} is not a mining store and not empty: give a new or an empty folder")


def make_root(path: Path) -> None:
    """The zarr groups above the rounds; leftovers of removed rounds are cleared away. Needs the write lock."""
    check_folder(path)
    (path / ROUNDS).mkdir(parents=True, exist_ok=True)
    for folder in (path, path / ROUNDS):
        if not (folder / "zarr.json").exists():
            group = {"attributes": {}, "node_type": "group", "zarr_format": 3}
            write_atomic(folder / "zarr.json", json.dumps(group, sort_keys=True).encode())
    for left in (path / ROUNDS).glob(f"*{REMOVED}"):
        shutil.rmtree(left)


def _fill(values: np.ndarray) -> float:
    """The fill value of a derived array: no distance, no row; 0 for bytes."""
    return {"f": np.nan, "i": -1}.get(values.dtype.kind, 0)


def _create_sharded(folder: Path, count: int, dim: int, shard_rows: int) -> None:
    """The arrays that are written shard by shard."""
    inner = math.gcd(INNER_ROWS, shard_rows)
    _create(folder / "entry_constant", (count,), np.dtype("uint8"), UNKNOWN, (shard_rows,), None)
    _create(folder / "descriptors", (count, dim), np.dtype("float32"), np.nan, (inner, dim), (shard_rows, dim))


def _create(
    path: Path, shape: Sequence[int], dtype: np.dtype, fill: float, chunks: Sequence[int], shards: Sequence[int] | None
) -> Any:
    """A zarr v3 array: uncompressed, crc32c on every chunk, every chunk written even where it is all fill values."""
    return zarr.create_array(
        path,
        shape=tuple(shape),
        dtype=dtype,
        chunks=tuple(chunks),
        shards=None if shards is None else tuple(shards),
        fill_value=dtype.type(fill),
        compressors=Crc32cCodec(),
        config={"write_empty_chunks": True},
        zarr_format=3,
    )
