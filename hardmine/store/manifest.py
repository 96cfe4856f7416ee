"""What a patch store says of itself: `manifest.json`, written last. Without a manifest there is no store."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hardmine.errors import MissingError, StoreError

FORMAT = 1
MANIFEST, UNFINISHED, REJECTS = "manifest.json", "unfinished.json", "rejects.csv"
APPENDING = "append.json"  # the plan of an append, while it is unfinished
SHARDS, COLUMNS, PAIRS = "shards", "columns", "pairs"
ShardKind = Literal["hdf5", "webdataset"]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WrittenFile(_Entry):
    """Size in bytes and hex SHA-256 of a file as it was written."""

    bytes: int
    sha256: str


class StoredFile(_Entry):
    """A file of the store: its path inside it, size in bytes, hex SHA-256."""

    file: str
    bytes: int
    sha256: str


class Shard(StoredFile):
    """A shard and the number of its items; index: where each lies in it, for shards that need one (tars)."""

    rows: int
    index: StoredFile | None = None


class Column(StoredFile):
    """A column, one value per patch (.npy), and its dtype."""

    dtype: str


class Pairs(StoredFile):
    """An evaluation pair list: int64 (rows, 3) of row, row, match; `lost` pairs named a rejected patch."""

    name: str
    rows: int
    lost: int


class Append(_Entry):
    """Items added to the store later: rows [first_row, first_row + rows), from shard number first_shard on; the other
    names as in the manifest, for these items."""

    kind: str
    options: dict[str, Any]
    policy: str
    first_row: int
    rows: int
    first_shard: int
    source: dict[str, Any]
    source_key: str


class Manifest(_Entry):
    """The whole of `manifest.json`.

    kind, options: the reader that made the store, and its options. policy: the rule by which files became pixels.
    shards_kind: of every shard. pixel_shape: (H, W) or (H, W, 3) of every item, or None for images of several sizes.
    pictures: the picture options by which images were stored, None for a dataset of patches. counts: the table that
    ingest printed. source: what the store was made from and how, part by part; source_key: hex SHA-256 of it, by which
    a repeated ingest is found. appends: what was added later; columns, pairs, rejects and counts are of the whole.
    """

    format: int = FORMAT
    kind: str
    options: dict[str, Any]
    policy: str
    rows: int
    pixel_shape: tuple[int, ...] | None
    shards_kind: ShardKind = "hdf5"
    pictures: dict[str, Any] | None = None
    classes: int
    splits: list[str]
    shards: list[Shard]
    columns: dict[str, Column]
    pairs: list[Pairs]
    rejects: StoredFile
    counts: dict[str, int]
    source: dict[str, Any]
    source_key: str
    appends: list[Append] = []

    def files(self) -> list[StoredFile]:
        """Every file that the store consists of, besides the manifest."""
        indices = [shard.index for shard in self.shards if shard.index is not None]
        return [*self.shards, *indices, *self.columns.values(), *self.pairs, self.rejects]

    @property
    def colour(self) -> Literal["grey", "rgb"]:
        """What an item's pixels are: "grey" (H, W) or "rgb" (H, W, 3)."""
        if self.pixel_shape is not None:
            return "grey" if len(self.pixel_shape) == 2 else "rgb"
        return (self.pictures or {}).get("colour", "rgb")

    def to_bytes(self) -> bytes:
        """The manifest as indented JSON."""
        return (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode()


def read_manifest(store: Path) -> Manifest:
    """Raises MissingError if `store` holds none, StoreError if it is damaged or of another format version."""
    path = store / MANIFEST
    if not path.is_file():
        if (store / UNFINISHED).is_file():
            raise MissingError(f"{store} holds an unfinished ingest: run the same ingest again to finish it")
        raise MissingError(f"no patch store at {store} (no {MANIFEST} in it): make one with `hardmine ingest`")
    return parse_manifest(path.read_bytes(), str(store))


def parse_manifest(content: bytes, store: str) -> Manifest:
    """The manifest of `store`. Raises StoreError if it is damaged or of another format version."""
    try:
        tree = json.loads(content)
        version = tree["format"]
        if version != FORMAT:
            raise StoreError(f"{store} has patch store format {version}, this hardmine reads {FORMAT}: ingest again")
        return Manifest.model_validate(tree)
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{store}/{MANIFEST} is damaged ({error}): ingest the data set again") from error


def rejects_to_csv(rejects: Iterable[tuple[bytes, str]]) -> bytes:
    """CSV of (source, reason), every field quoted: commas, quotes, line ends and invalid UTF-8 survive byte by byte."""
    text = io.StringIO(newline="")
    table = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    table.writerow(["source", "reason"])
    table.writerows([source.decode("utf-8", "surrogateescape"), reason] for source, reason in rejects)
    return text.getvalue().encode("utf-8", "surrogateescape")


def rejects_from_csv(path: Path) -> list[tuple[bytes, str]]:
    """The (source, reason) rows that `rejects_to_csv` wrote."""
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.reader(file))
    return [(source.encode("utf-8", "surrogateescape"), reason) for source, reason in rows[1:]]
