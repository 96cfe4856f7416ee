"""Writing files so that a reader never sees half of one, a full disk says so, and two writers never meet."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hardmine.errors import DiskError, LockedError, MissingError

PARTIAL = ".partial"  # suffix of a file that is still being written; a leftover one belongs to a killed writer
LOCK, OWNER = ".lock", ".lock-owner.json"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def disk_errors(what: str | Path) -> Iterator[None]:
    """Turn "no space left", "quota exceeded" and "file too large" into a DiskError that names `what`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM or isinstance(error, DiskError):
            raise
        raise DiskError(
            f"cannot write {what}: {os.strerror(error.errno)}. Make room (or choose another disk), then run the same "
            "command again."
        ) from error


def require_folder(path: Path) -> None:
    """Raises MissingError where the folder that `path` is to be written into is not there."""
    if not path.parent.is_dir():
        raise MissingError(f"cannot write {path}: there is no folder {path.parent}; make it first, or choose another")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary sibling of `path` to write to. On success it is flushed to the disk and takes the place of
    `path` in one step; on any failure it is removed and `path` is as it was. Raises DiskError when the disk is full,
    MissingError where the folder is not there.
    """
    path = Path(path)
    require_folder(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        with disk_errors(path):
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path`: after a crash or a full disk `path` holds the old bytes or the new, never a mixture.

    Raises DiskError when the disk is full."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def remove_partials(folder: Path) -> None:
    """Remove what killed writers left in `folder`. Only for the holder of the folder's write lock."""
    for path in folder.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def write_lock(folder: Path, what: str) -> Iterator[None]:
    """Be the only writer in `folder` (created if need be), without waiting.

    The operating system drops the lock when the process dies, so a killed writer never blocks the next one. Raises
    LockedError naming the host, process and start of the present owner; `what` says what is locked, for the message.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise LockedError(
                f"{what} {folder} is being written to by {_owner(folder)}. Wait for its end, or choose another folder."
            ) from None
    try:
        owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
        write_atomic(folder / OWNER, json.dumps(owner).encode())
        yield
    finally:
        (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    try:
        owner = json.loads((folder / OWNER).read_bytes())
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # taken a moment ago, or just given back
        return "another process"


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Windows cannot open a folder for this."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The records of a log of JSON lines, in order; a last line that a kill cut short is left out. Empty where there is
    no file."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
