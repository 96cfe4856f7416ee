"""How an ingest stores its items: in which kind of shard, as which pixels, how many to a shard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardmine.errors import InputError, UnknownNameError
from hardmine.options import check
from hardmine.pipeline.pictures import PicturePolicy
from hardmine.pipeline.readers.base import Candidates
from hardmine.store.manifest import ShardKind

KINDS: tuple[ShardKind, ...] = ("hdf5", "webdataset")
MOST_ROWS = 32768
_SHARD_BYTES = 128 * 2**20  # of pixels, which a worker holds in memory until its shard is written
_IMAGE_ROWS = 4096  # encoded images in a tar


@dataclass(frozen=True)
class Format:
    """kind: of the shards. pictures: how images are stored, None for a dataset of pixels. pixel_shape: of every stored
    item, None for images of several sizes."""

    kind: ShardKind
    pictures: PicturePolicy | None
    pixel_shape: tuple[int, ...] | None

    @property
    def shard_rows(self) -> int:
        """Items to a shard, where nothing else is asked for: at most 128 MiB of pixels, or 4096 images."""
        if self.pixel_shape is None:
            return _IMAGE_ROWS
        return max(1, min(MOST_ROWS, _SHARD_BYTES // math.prod(self.pixel_shape)))

    @property
    def picture_options(self) -> dict[str, Any] | None:
        """For the manifest."""
        return None if self.pictures is None else self.pictures.model_dump(mode="json")

    def source(self) -> dict[str, Any]:
        """What of it a store depends on, for the key of an ingest."""
        return {"shards": self.kind, "pictures": self.picture_options}


def choose_format(candidates: Candidates, shards: str | None, pictures: Mapping[str, Any] | None) -> Format:
    """The format for what a reader lists. shards: None is hdf5 for pixels, webdataset for images. pictures: options of
    `PicturePolicy`; whether to crop to boxes is the reader's to say where they do not.

    Raises UnknownNameError for a kind or picture option that is none, InputError for options that do not go together.
    """
    if shards is not None and shards not in KINDS:
        raise UnknownNameError("shard kind", shards, KINDS)
    kind: ShardKind = shards or ("webdataset" if candidates.pixel_shape is None else "hdf5")
    if candidates.pixel_shape is not None:
        if pictures:
            raise InputError(f"picture options ({', '.join(pictures)}) are for images; this dataset has patches")
        if kind == "webdataset" and len(candidates.pixel_shape) != 2 and candidates.pixel_shape[2:] != (3,):
            raise InputError(f"webdataset shards hold grey or RGB items, not {candidates.pixel_shape}: use hdf5")
        return Format(kind, None, candidates.pixel_shape)
    policy = check(PicturePolicy, {"crop": candidates.crop, **(pictures or {})}, "picture options")
    if kind == "hdf5" and policy.shape is None:
        raise InputError(
            "hdf5 shards hold images of one size: give the picture option size=square:N, or choose webdataset shards"
        )
    if kind == "hdf5" and policy.encoding != "original":
        raise InputError(f"hdf5 shards hold pixels, so the picture option encoding={policy.encoding} means nothing")
    return Format(kind, policy, policy.shape)
