"""A folder anywhere: on this machine's disks, or at any fsspec URL (s3://, gs://, memory://, sftp://, ...)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hardmine.errors import HardmineError, InputError, StoreError
from hardmine.store.files import replacing

_BLOCK = 1 << 22
_NO_FOLDERS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss"}  # there a path is one long name


def as_url(path: str | os.PathLike[str]) -> str | None:
    """The URL that `path` is, or None for a path on disk. `Path` makes s3://b/x into s3:/b/x, which is understood."""
    text = os.fspath(path)
    if "://" in text:
        return text
    found = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]+):/([^/].*)", text)
    if found is None:
        return None
    scheme, rest = found.groups()
    return f"{scheme}://{'/' if scheme in ('file', 'local') else ''}{rest}"


@dataclass(frozen=True)
class Location:
    """A folder in a file system. url: as the user gave it."""

    url: str
    fs: Any
    root: str

    @classmethod
    def of(cls, url: str | os.PathLike[str]) -> Location:
        """Raises InputError for a protocol that fsspec does not know, or whose library is not installed."""
        text = as_url(url) or os.fspath(url)
        import fsspec

        try:
            fs, root = fsspec.core.url_to_fs(text)
        except (ImportError, ValueError) as error:
            raise InputError(f"cannot use {text}: {error}") from error
        return cls(text, fs, root.rstrip("/"))

    @property
    def local(self) -> bool:
        """Whether it is on this machine's disks."""
        from fsspec.implementations.local import LocalFileSystem

        return isinstance(self.fs, LocalFileSystem)

    @property
    def has_folders(self) -> bool:
        """Whether folders must be made before files can lie in them."""
        protocol = self.fs.protocol
        return not _NO_FOLDERS.intersection([protocol] if isinstance(protocol, str) else protocol)

    def read(self, name: str) -> bytes | None:
        """A small file, or None if it is not there."""
        with _named(f"{self.url}/{name}"):
            try:
                return self.fs.cat_file(f"{self.root}/{name}")
            except FileNotFoundError:
                return None

    def names(self, folder: str = "") -> list[str]:
        """What is in a folder, sorted; nothing if there is none."""
        with _named(f"{self.url}/{folder}"):
            try:
                found = self.fs.ls(f"{self.root}/{folder}".rstrip("/"), detail=False, refresh=True)
            except FileNotFoundError:
                return []
        return sorted({path.rstrip("/").rsplit("/", 1)[-1] for path in found})

    def sizes(self) -> dict[str, int]:
        """Bytes of every file below, by its path from here."""
        with _named(self.url):
            self.fs.invalidate_cache()
            try:
                found = self.fs.find(self.root, detail=True)
            except FileNotFoundError:
                return {}
        return {path.removeprefix(f"{self.root}/"): entry["size"] for path, entry in found.items()}

    def blocks(self, name: str) -> Iterator[bytes]:
        """The content of a file. Raises StoreError if it cannot be read."""
        try:
            with _named(f"{self.url}/{name}"), self.fs.open(f"{self.root}/{name}", "rb") as file:
                while block := file.read(_BLOCK):
                    yield block
        except FileNotFoundError as error:
            raise StoreError(f"{self.url}/{name} is missing") from error

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write; on this machine's disks it appears whole or not at all."""
        path = f"{self.root}/{name}"
        if self.local:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with replacing(Path(path)) as temporary, open(temporary, "wb") as file:
                yield file
            return
        try:
            with _named(f"{self.url}/{name}"):
                if self.has_folders:
                    self.fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
                with self.fs.open(path, "wb") as file:
                    yield file
        except FileNotFoundError as error:
            raise StoreError(f"cannot write {self.url}/{name}: {error}") from error

    def remove(self, name: str) -> None:
        """Remove a file that is there."""
        with _named(f"{self.url}/{name}"):
            self.fs.rm_file(f"{self.root}/{name}")


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Each storage library has exceptions of its own: turn them into one that names the file."""
    try:
        yield
    except (HardmineError, FileNotFoundError, GeneratorExit):
        raise
    except Exception as error:
        raise StoreError(f"{what}: {type(error).__name__}: {error}") from error
