"""One webdataset shard: a tar of image files, and beside it an index by which any of them is read without a scan.

    000003.tar        members 000003000000.jpg, 000003000001.png, ... in the order of the store's rows, and nothing else
    000003.idx.npy    int64 (n, 2): offset and length in bytes of each member's content

A member's key is the shard's number and its place in the shard, six digits each: unique in the store, without dots, and
short. Readable with `tar tf` and by the webdataset library. The same members give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hardmine.errors import InputError, StoreError
from hardmine.store.decode import Colour, ImageError, decode
from hardmine.store.files import replacing, write_atomic
from hardmine.store.manifest import WrittenFile

MOST_MEMBERS = 10**6  # of a shard: six digits of a key
_DIGITS = 6
_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class WrittenTar:
    """The files of a shard as they were written; rows: its members; content: bytes in them, the rest of the tar being
    headers and padding."""

    tar: WrittenFile
    index: WrittenFile
    rows: int
    content: int


def index_path(tar: Path) -> Path:
    """Where the index of a shard lies: 000003.tar has 000003.idx.npy."""
    return tar.with_name(f"{tar.stem}.idx.npy")


def member_key(shard: int, place: int) -> str:
    """The key of the member at `place` of shard `shard`."""
    return f"{shard:0{_DIGITS}}{place:0{_DIGITS}}"


def write_tar(path: Path, shard: int, members: Iterable[tuple[bytes, str]]) -> WrittenTar:
    """Write shard number `shard` to `path`, and its index. members: (content of an image file, its extension).

    Members are written as they come, so that only one is in memory. A tar, then its index, takes its place when it is
    whole; whatever goes wrong in between, neither does. Raises InputError for more than 1,000,000 members or shards,
    DiskError when the disk is full."""
    digest = hashlib.sha256()
    places: list[tuple[int, int]] = []
    size = 0
    if shard >= MOST_MEMBERS:
        raise InputError(f"shard {shard}: a store has at most {MOST_MEMBERS:,} shards; make them larger")
    with replacing(path) as temporary, open(temporary, "wb") as file:

        def put(*parts: bytes) -> None:
            nonlocal size
            for part in parts:
                file.write(part)
                digest.update(part)
                size += len(part)

        for content, extension in members:
            if len(places) == MOST_MEMBERS:
                raise InputError(f"{path}: a shard has at most {MOST_MEMBERS:,} members; make the shards smaller")
            put(_header(f"{member_key(shard, len(places))}.{extension}", len(content)))
            places.append((size, len(content)))
            put(content, bytes(-len(content) % _BLOCK))
        put(bytes(2 * _BLOCK))
        put(bytes(-size % tarfile.RECORDSIZE))
    index = np.array(places, np.int64).reshape(-1, 2)
    buffer = io.BytesIO()
    np.save(buffer, index, allow_pickle=False)
    write_atomic(index_path(path), buffer.getvalue())
    return WrittenTar(
        tar=WrittenFile(bytes=size, sha256=digest.hexdigest()),
        index=WrittenFile(bytes=buffer.tell(), sha256=hashlib.sha256(buffer.getvalue()).hexdigest()),
        rows=len(places),
        content=int(index[:, 1].sum()),
    )


def read_index(tar: Path, rows: int) -> np.ndarray:
    """The index of a shard, int64 (rows, 2). Raises StoreError if it is missing or not that of `rows` members."""
    path = index_path(tar)
    try:
        index = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read the index {path}: {error}. Ingest the data set again.") from error
    if index.shape != (rows, 2) or index.dtype != np.int64:
        raise StoreError(f"{path} holds {index.dtype} {index.shape}, not int64 {(rows, 2)}: it is not this store's")
    return index


class TarShards:
    """The tars of a store, read at random. Nothing is kept open, so it may be used by threads and after a fork."""

    def __init__(self, tars: list[Path], rows: list[int], colour: Colour, shape: tuple[int, ...] | None):
        self._tars, self._rows, self._colour, self._shape = tars, rows, colour, shape
        self._indices: list[np.ndarray | None] = [None] * len(tars)

    def gather(self, shard: np.ndarray, place: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """The pixels of items int64 (n,): of which shard, at which place. See `PatchStore.gather`."""
        if self._shape is None:
            found: list[np.ndarray] = [np.empty(0, np.uint8)] * len(shard)
            for i, pixels in self._decoded(shard, place):
                found[i] = pixels
            return found
        pixels = np.empty((len(shard), *self._shape), np.uint8)
        for i, item in self._decoded(shard, place):
            pixels[i] = item
        return pixels

    def contents(self, shard: int, places: Iterable[int]) -> Iterator[bytes]:
        """The files of some members of one shard, in the order asked for. Raises StoreError if the tar is too short."""
        index = self._index(shard)
        with _opened(self._tars[shard]) as file:
            for place in places:
                yield _read(file, self._tars[shard], index, place)

    def problems(self, shard: int) -> list[str]:
        """Decode every item of a shard, and look whether each lies where its key says; one line per item that fails."""
        found = []
        index = self._index(shard)
        with _opened(self._tars[shard]) as file:
            for place in range(self._rows[shard]):
                key = member_key(shard, place)
                file.seek(max(int(index[place, 0]) - _BLOCK, 0))
                if file.read(len(key) + 1) != f"{key}.".encode():
                    found.append(f"{self._tars[shard]}: member {key} is not where the index says")
                    continue
                try:
                    self._decode(_read(file, self._tars[shard], index, place), shard, place)
                except (ImageError, StoreError) as error:
                    found.append(str(error))
        return found

    def _decoded(self, shard: np.ndarray, place: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """(position in the request, pixels), shard by shard and in the order of the file."""
        order = np.lexsort((place, shard))
        for number in np.unique(shard).tolist():
            asked = order[shard[order] == number]
            places = place[asked].tolist()
            for i, at, content in zip(asked.tolist(), places, self.contents(number, places)):
                yield i, self._decode(content, number, at)

    def _decode(self, content: bytes, shard: int, place: int) -> np.ndarray:
        row = sum(self._rows[:shard]) + place
        name = f"{self._tars[shard]}: member {member_key(shard, place)} (row {row})"
        pixels = decode(content, self._colour, name)
        if self._shape is not None and pixels.shape != self._shape:
            raise StoreError(f"{name} is {pixels.shape}, the manifest says {self._shape}: ingest the data set again")
        return pixels

    def _index(self, shard: int) -> np.ndarray:
        index = self._indices[shard]
        if index is None:
            index = self._indices[shard] = read_index(self._tars[shard], self._rows[shard])
        return index


def stream_tar(tar: Path, rows: int) -> Iterator[tuple[int, bytes]]:
    """(place, content) of each of the `rows` members, read from start to end through the webdataset library.

    Raises StoreError, naming the shard, where the tar is damaged, cut short, or another's."""
    import webdataset

    expected = 0
    try:
        for sample in webdataset.tariterators.tarfile_samples([{"url": str(tar)}]):
            place = int(sample["__key__"][-_DIGITS:])
            contents = [value for name, value in sample.items() if not name.startswith("__")]
            if place != expected or len(contents) != 1:
                raise StoreError(f"{tar}: member {sample['__key__']} where member number {expected} should be")
            yield place, contents[0]
            expected += 1
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise StoreError(f"{tar} cannot be read after {expected} of {rows} members: {error.args[0]}") from error
    if expected != rows:
        raise StoreError(f"{tar} ends after {expected} of {rows} members: ingest the data set again")


def _header(name: str, size: int) -> bytes:
    """A USTAR header that depends on nothing but name and size."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, 0
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def _opened(tar: Path) -> BinaryIO:
    try:
        return open(tar, "rb")
    except OSError as error:
        raise StoreError(f"cannot open the shard {tar}: {error}. Ingest the data set again.") from error


def _read(file: BinaryIO, tar: Path, index: np.ndarray, place: int) -> bytes:
    offset, length = index[place].tolist()
    file.seek(offset)
    content = file.read(length)
    if len(content) != length:
        raise StoreError(f"{tar} ends before the end of member {place}: it is damaged, ingest the data set again")
    return content
