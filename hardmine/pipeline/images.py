"""Reading one photograph, by one policy everywhere (`store.decode`), and listing a folder of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hardmine.errors import InputError, MissingError
from hardmine.store.decode import ImageError, decode, printable

__all__ = ["EXTENSIONS", "POLICY", "ImageError", "decode_grey", "list_images", "printable", "read_bytes", "read_grey"]

POLICY = "first frame; EXIF orientation applied; alpha over white; 16 bit >> 8; BT.601 luma"
EXTENSIONS = frozenset(
    (".bmp", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
)


def read_bytes(path: Path) -> bytes:
    """A file's bytes. Raises ImageError: no such file, not a file, no permission, zero bytes, another read error."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ImageError(path, "no such file") from error
    except IsADirectoryError as error:
        raise ImageError(path, "a folder, not a file") from error
    except PermissionError as error:
        raise ImageError(path, "no permission to read it") from error
    except OSError as error:
        raise ImageError(path, f"cannot be read ({error.strerror or error})") from error
    if not content:
        raise ImageError(path, "empty file (0 bytes)")
    return content


def read_grey(path: Path) -> np.ndarray:
    """A photograph as uint8 (H, W), by that policy. Raises ImageError with the cause and the byte count."""
    return decode_grey(read_bytes(path), path)


def decode_grey(content: bytes, path: Path) -> np.ndarray:
    """`read_grey` for bytes already read; `path` is for the message."""
    return decode(content, "grey", path)


def list_images(folder: Path, recursive: bool = True) -> tuple[list[Path], dict[str, int]]:
    """Image files of a folder by extension (any case), byte-sorted by relative path, and counts of what was left out.

    Dot files and folders (.DS_Store, ._photo.jpg) are skipped and counted, as are other files, and links to folders,
    which are not followed. Raises MissingError without the folder, InputError where it holds no image, saying what it
    does hold, or where a folder in it cannot be read.
    """
    if not folder.is_dir():
        raise MissingError(f"{printable(folder)} is not a folder; a folder of photographs is expected")
    paths: list[Path] = []
    dots = links = 0
    others: list[str] = []
    folders: list[str] = []
    for here, below, names in os.walk(folder, onerror=_unreadable):
        hidden = [name for name in below if name.startswith(".")]
        linked = [name for name in below if name not in hidden and os.path.islink(os.path.join(here, name))]
        below[:] = [name for name in below if name not in hidden and name not in linked]
        dots, links = dots + len(hidden), links + len(linked)
        for name in names:
            if name.startswith("."):
                dots += 1
            elif os.path.splitext(name)[1].lower() in EXTENSIONS:
                paths.append(Path(here, name))
            else:
                others.append(name)
        if not recursive:
            folders = list(below)
            break
        folders.extend(below)
    if not paths:
        raise InputError(_nothing_found(folder, recursive, others, folders, dots, links))
    paths.sort(key=lambda path: relative_name(path, folder))
    counts = {"dot files skipped": dots, "other files skipped": len(others), "linked folders not followed": links}
    return paths, {name: number for name, number in counts.items() if number}


def relative_name(path: Path, folder: Path) -> bytes:
    """The path below `folder` as bytes on disk, parts joined by '/': what a store calls a source."""
    return os.fsencode(path.relative_to(folder).as_posix())


def _unreadable(error: OSError) -> None:
    raise InputError(f"{printable(error.filename)}: cannot list this folder ({error.strerror})") from error


def _nothing_found(folder: Path, recursive: bool, others: list[str], folders: list[str], dots: int, links: int) -> str:
    where = (
        f"in {printable(folder)} and the {len(folders)} folders below it" if recursive else f"in {printable(folder)}"
    )
    kinds = f" ({_kinds(others)})" if others else ""
    aside = f", {dots} dot files" + (f", {links} linked folders, which are not followed" if links else "")
    inner = f" Its {len(folders)} folders were not searched." if folders and not recursive else ""
    return (
        f"no image {where}: found {len(others)} other files{kinds}{aside}.{inner} "
        f"Expected files ending in {' '.join(sorted(EXTENSIONS))}, in either case."
    )


def _kinds(names: Iterable[str]) -> str:
    kinds = sorted({os.path.splitext(name)[1].lower() or "no extension" for name in names})
    return ", ".join(printable(kind) for kind in kinds[:5]) + (", ..." if len(kinds) > 5 else "")
