"""A patch store at a URL, used as if it were here: each shard is fetched into a local cache when it is first needed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from filelock import FileLock

from hardmine.errors import MissingError
from hardmine.store.location import Location
from hardmine.store.manifest import MANIFEST, Manifest, StoredFile, parse_manifest
from hardmine.store.patches import PatchStore
from hardmine.store.remote import File, cache_folder, copy_file, write_small


class RemotePatchStore(PatchStore):
    """As PatchStore. path: its folder in the cache, named by the SHA-256 of the manifest, so that another state of the
    store never meets it. Every file is compared with its SHA-256 before it gets its name there; the cache may be
    deleted at any time that no process uses it. Picklable: other processes share the cache."""

    def __init__(self, path: Path, manifest: Manifest, url: str):
        super().__init__(path, manifest)
        self.url = url
        self._here: set[int] = set()

    @classmethod
    def open_url(cls, url: str, cache: Path | None = None) -> RemotePatchStore:
        """Fetch the manifest, the columns and the pair lists. cache: see `cache_folder`.

        Raises MissingError if there is no store, StoreError if a file of it is damaged or cannot be read, InputError
        for a protocol that cannot be used."""
        here = Location.of(url)
        content = here.read(MANIFEST)
        if content is None:
            raise MissingError(f"no patch store at {url} (no {MANIFEST} there): copy one there with `hardmine copy`")
        manifest = parse_manifest(content, url)
        folder = (cache or cache_folder()) / "patches" / hashlib.sha256(content).hexdigest()[:32]
        store = cls(folder, manifest, url)
        store._fetch([*manifest.columns.values(), *manifest.pairs, manifest.rejects])
        if not (folder / MANIFEST).exists():
            write_small(Location.of(folder), MANIFEST, content)
        return store

    def __reduce__(self) -> tuple[type[RemotePatchStore], tuple[Path, Manifest, str]]:  # type: ignore[override]
        return RemotePatchStore, (self.path, self.manifest, self.url)

    def __repr__(self) -> str:
        return f"{super().__repr__()} from {self.url}"

    def fetch(self, shards: np.ndarray) -> None:
        """Make sure that the shards of these numbers are in the cache."""
        for number in np.unique(shards).tolist():
            if number not in self._here:
                shard = self.manifest.shards[number]
                self._fetch([shard, *([shard.index] if shard.index else [])])
                self._here.add(number)

    def _fetch(self, entries: list[StoredFile]) -> None:
        here, cache = Location.of(self.url), Location.of(self.path)
        for entry in entries:
            path = self.path / entry.file
            if _is_there(path, entry):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(f".{path.name}.lock")):  # another process may be fetching it
                if not _is_there(path, entry):
                    copy_file(here, cache, File(entry.file, entry.bytes, entry.sha256))


def _is_there(path: Path, entry: StoredFile) -> bool:
    return path.is_file() and os.path.getsize(path) == entry.bytes
