"""One HDF5 shard: a uint8 dataset `patches` (n, *pixel_shape), contiguous and uncompressed, so that reading it is a
memory map at the dataset's offset. Readable with any HDF5 tool (format 1.10 on)."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np

from hardmine.errors import StoreError
from hardmine.store.files import replacing
from hardmine.store.manifest import WrittenFile

DATASET = "patches"
_PAGE = 4096
_PIECE = 2**20  # bytes written at once; for more, some kernels fetch huge pages to the page cache, which takes longer


def write_patches(path: Path, pixels: np.ndarray) -> WrittenFile:
    """Write `pixels` (n, ...) uint8, n may be 0, as a shard; equal pixels give equal bytes.

    The HDF5 header is made in memory and the pixels follow it with plain writes: a full disk is then an ordinary
    operating system error (DiskError, nothing left behind), which the HDF5 library does not report as one."""
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    header, offset = _header(pixels.shape)
    parts = (header.ljust(offset, b"\0"), pixels.reshape(-1).data)
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(_sha256, parts)  # while they are written and flushed
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(parts[0])
            file.writelines(parts[1][start : start + _PIECE] for start in range(0, pixels.nbytes, _PIECE))
        return WrittenFile(bytes=offset + pixels.nbytes, sha256=digest.result())


def _sha256(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def map_patches(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A read-only memory map of a shard, uint8 of `shape` (n, *pixel_shape). Nothing is read yet.

    Raises StoreError if the file is missing, is no such shard, or cannot be opened because its file system has no
    locks."""
    try:
        with h5py.File(path, "r") as file:
            dataset = file[DATASET]
            found, dtype, offset = dataset.shape, dataset.dtype, dataset.id.get_offset()
    except (OSError, KeyError) as error:
        if "unable to lock file" in str(error):  # the HDF5 library's own words, whatever the errno
            raise StoreError(
                f"cannot open {path}: its file system has no file locks ({error}). Set the environment variable "
                "HDF5_USE_FILE_LOCKING=FALSE and try again."
            ) from error
        raise StoreError(f"cannot open the shard {path}: {error}. Ingest the data set again.") from error
    if found != tuple(shape) or dtype != np.uint8 or (offset is None and math.prod(shape) > 0):
        raise StoreError(f"{path} holds {dtype} {found}, not contiguous uint8 {tuple(shape)}: it is not this store's")
    if math.prod(shape) == 0:
        return np.empty(shape, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, "r", offset=offset, shape=tuple(shape)))


class Hdf5Shards:
    """The memory maps of a store's shards, opened when first needed, by each process for itself."""

    def __init__(self, files: list[Path], rows: list[int], shape: tuple[int, ...]):
        self._files, self._rows, self._shape = files, rows, shape
        self._maps = [memoryview(b"")] * len(files)
        self._unmapped = set(range(len(files)))

    def gather(self, shard: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The pixels of items int64 (n,): of which shard, at which place in it. See `PatchStore.gather`."""
        size = math.prod(self._shape)
        start = place * size
        # One copy per patch, from the page cache to its place: twice as fast as fancy indexing shard by shard.
        maps, asked = self._maps, shard.tolist()
        for number in self._unmapped.intersection(asked) if self._unmapped else ():
            shape = (self._rows[number], *self._shape)
            maps[number] = map_patches(self._files[number], shape).reshape(-1).data
            self._unmapped.discard(number)
        pixels = bytearray().join([maps[s][b : b + size] for s, b in zip(asked, start.tolist())])
        return np.frombuffer(pixels, np.uint8).reshape(len(shard), *self._shape)

    def problems(self, shard: int) -> list[str]:
        """One line if the shard does not hold what the manifest says."""
        try:
            map_patches(self._files[shard], (self._rows[shard], *self._shape))
        except StoreError as error:
            return [str(error)]
        return []


def _header(shape: tuple[int, ...]) -> tuple[bytes, int]:
    """The bytes of an HDF5 file up to its pixels, and the offset in bytes at which those begin."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=("v110", "v110"), alignment_threshold=_PAGE, alignment_interval=_PAGE) as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_layout(h5py.h5d.CONTIGUOUS)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        layout.set_obj_track_times(False)
        space = h5py.h5s.create_simple(shape)
        dataset = h5py.h5d.create(file.id, DATASET.encode(), h5py.h5t.STD_U8LE, space, layout)
        offset = dataset.get_offset()
    header = buffer.getvalue()
    if offset is None:
        offset = len(header)
    if len(header) > offset:
        raise StoreError(
            f"this HDF5 library ({h5py.version.hdf5_version}) puts data before the header: use 1.10 to 2.0"
        )
    return header, offset
