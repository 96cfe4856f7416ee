"""`folder`: image files in folders named after their classes, or in any layout that a regular expression describes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from pydantic import Field, field_validator, model_validator

from hardmine.errors import InputError
from hardmine.pipeline.images import list_images, printable, relative_name
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.listing import Listed, PictureReader

_GROUPS = ("label", "split", "camera")
_SPLIT_NAMES = frozenset((b"train", b"training", b"val", b"valid", b"validation", b"test", b"query", b"gallery"))


class FolderOptions(base.Options):
    """Options of `ingest folder`."""

    depth: int | None = Field(None, ge=1, description="level below SRC of the class folders; 1, the default: SRC/CLASS")
    split_depth: int | None = Field(None, ge=1, description="level whose folders are splits, not part of the class")
    pattern: str | None = Field(
        None, description="regular expression found in the path below SRC, with a group (?P<label>), and split, camera"
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groupindex
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        if "label" not in groups or set(groups) - set(_GROUPS):
            raise ValueError("a group (?P<label>...) is needed; (?P<split>...) and (?P<camera>...) are the only others")
        return pattern

    @model_validator(mode="after")
    def _agree(self) -> FolderOptions:
        if self.pattern is not None and (self.depth is not None or self.split_depth is not None):
            raise ValueError("give either pattern, or depth and split_depth")
        if self.split_depth is not None and not self.split_depth <= (self.depth or 1) != 1:
            raise ValueError("split_depth is a level down to depth, which must then be 2 or more: SRC/SPLIT/CLASS")
        return self


@base.readers.register("folder")
class Folder(PictureReader):
    """Candidates in byte order of their paths; source is that path. raw_label is bytes: the names of the folders down
    to `depth`, joined by '/', without that of `split_depth`, so that characters of one name in two alphabets stay two
    classes; or what the pattern's group `label` matched.

    With a pattern: column camera int64 if it has that group; images it does not match are left out and counted."""

    Options: ClassVar[type[base.Options]] = FolderOptions

    def listed(self) -> Listed:
        """Raises MissingError without the folder, InputError where it holds no image, none lies in a class folder, or
        the pattern matches none."""
        paths, counts = list_images(self.src)
        names = [relative_name(path, self.src) for path in paths]
        listed = self._by_pattern(names) if self.options.pattern is not None else self._by_depth(names)
        listed.counts = counts | listed.counts
        return listed

    def _by_depth(self, names: list[bytes]) -> Listed:
        depth, split_depth = self.options.depth or 1, self.options.split_depth
        kept, label, split, rejects = [], [], [], []
        for name in names:
            parts = name.split(b"/")[:-1]
            if len(parts) < depth:
                rejects.append(base.Reject(name, f"lies above the class folders, which are {depth} below the source"))
                continue
            kept.append(name)
            split.append(b"" if split_depth is None else parts[split_depth - 1])
            label.append(b"/".join(part for level, part in enumerate(parts[:depth], 1) if level != split_depth))
        if not kept:
            raise InputError(self._none_in_classes(names, depth))
        full = {b"/".join(name.split(b"/")[:depth]) for name in kept}
        empty = sum(folder not in full for folder in _folders(os.fsencode(self.src), depth))
        counts = {"class folders without an image": empty}
        if split_depth is None:
            note = f"class folders named like a split (depth={depth + 1} split_depth={depth} takes them as such)"
            counts[note] = sum(folder.split(b"/")[-1].lower() in _SPLIT_NAMES for folder in full)
        return Listed(kept, label, split=None if split_depth is None else split, rejects=rejects, counts=_some(counts))

    def _none_in_classes(self, names: list[bytes], depth: int) -> str:
        deepest = max(name.count(b"/") for name in names)
        levels, hint = "directly in it", "Give the folder that holds the class folders"
        if deepest:
            levels, hint = f"at most {deepest} folders below it", f"Choose depth={deepest}, or the folder above"
        return (
            f"none of the {len(names)} images of {printable(self.src)} lies in a class folder: they lie {levels} "
            f"({printable(names[0])}), and class folders are expected {depth} below it (depth={depth}). {hint}."
        )

    def _by_pattern(self, names: list[bytes]) -> Listed:
        pattern = re.compile(self.options.pattern)
        groups = pattern.groupindex
        kept, label, split, camera, rejects = [], [], [], [], []
        unmatched = 0
        for name in names:
            match = pattern.search(_text(name))
            if match is None:
                unmatched += 1
                continue
            if not match["label"]:
                rejects.append(base.Reject(name, "the pattern leaves its label empty"))
                continue
            kept.append(name)
            label.append(_raw(match["label"]))
            split.append(_raw(match["split"] or "") if "split" in groups else b"")
            if "camera" in groups:
                camera.append(self._camera(match["camera"], name))
        if not kept:
            raise InputError(
                f"no image left after pattern {self.options.pattern!r} (0 of {len(names)} kept, {len(rejects)} with an "
                f"empty label); it was searched for in paths such as {printable(names[0])}"
            )
        return Listed(
            kept,
            label,
            split=split if "split" in groups else None,
            columns={"camera": np.array(camera, np.int64)} if "camera" in groups else {},
            rejects=rejects,
            counts=_some({"images that the pattern does not match": unmatched}),
        )

    def _camera(self, text: str | None, name: bytes) -> int:
        if text is None or not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise InputError(f"{printable(name)}: the pattern's camera is {text!r}; a whole number is expected")
        return int(text)


def _folders(above: bytes, depth: int, name: bytes = b"") -> Iterator[bytes]:
    """The folders `depth` levels below, as paths below it, byte-sorted; hidden and linked ones aside."""
    if depth == 0:
        yield name
        return
    with os.scandir(above) as entries:
        below = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(b"."))
    for folder in below:
        yield from _folders(os.path.join(above, folder), depth - 1, name + b"/" + folder if name else folder)


def _some(counts: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in counts.items() if number}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
