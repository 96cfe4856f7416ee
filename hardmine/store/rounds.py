"""The mining store: rounds on disk, found by content key, readable with any zarr v3 library.

A round is the folder `rounds/000001` of a zarr group; `round_writer` writes it, and its attributes say `committed` only
when everything else is there. Readers never see an uncommitted round. zarr answers with the fill value where a chunk
file is missing, so every file of a round is recorded with its size and checksum, and opening a round compares sizes.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.errors import BaseZarrError

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.store.files import write_lock
from hardmine.store.fingerprint import Key, differences, key_hash
from hardmine.store.index import Index, open_index

FORMAT = 1
ROUNDS, LOG = "rounds", "log.jsonl"
REMOVED = ".removed"
DERIVED = {
    "pairs": ("pair_distance", "pair_offsets"),
    "knn": ("knn", "knn_distance", "knn_other", "knn_other_distance"),
    "centroids": ("class_centroid", "nearest_class", "nearest_class_distance"),
    "index": ("index",),
}


@dataclass(frozen=True)
class Damage:
    """A file of a round that is not as it was committed: its array, its path in the round, what is wrong."""

    array: str
    file: str
    problem: str


class Round:
    """One committed embedding pass and what was derived from it. Arrays are read when first asked for, kept, and
    read-only; a pickled round carries none of them, and each process reads through its own handles.

    number: of the round. attrs: its attributes. key: its content key.
    """

    def __init__(self, folder: Path, attrs: dict[str, Any]):
        self.folder, self.attrs = folder, attrs
        self.number = int(folder.name)
        self.key: Key = attrs["key"]
        self._arrays: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        return f"Round({self.number}, {self.attrs['network']}, split {self.split!r}, {self.folder})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_arrays": {}}

    def absolute(self) -> Round:
        """The same, for processes with another working folder."""
        return Round(self.folder.resolve(), self.attrs)

    @property
    def split(self) -> str:
        """Name of the split that was embedded."""
        return self.key["split"]

    @property
    def derived(self) -> list[str]:
        """What was derived from the descriptors: any of 'pairs', 'knn', 'centroids', 'index'."""
        return sorted(self.attrs["derived"])

    @property
    def entry_row(self) -> np.ndarray:
        """int64 (M,): patch store row of each entry."""
        return self.array("entry_row")

    @property
    def entry_view(self) -> np.ndarray:
        """int16 (M,): view of each entry, 0 for the item itself."""
        return self.array("entry_view")

    @property
    def entry_offsets(self) -> np.ndarray:
        """int64 (C + 1,): class c owns entries `entry_offsets[c]:entry_offsets[c + 1]`."""
        return self.array("entry_offsets")

    @property
    def entry_label(self) -> np.ndarray:
        """int64 (M,): class of each entry."""
        return np.repeat(np.arange(len(self.entry_offsets) - 1), np.diff(self.entry_offsets))

    @property
    def items(self) -> np.ndarray:
        """int64 (N,): the entries with view 0, ascending. Line i of `knn` belongs to entry `items[i]`, that is to row
        `entry_row[items[i]]`."""
        return np.flatnonzero(self.entry_view == 0)

    def entry_constant(self) -> np.ndarray:
        """bool (M,): entries whose patch has a single grey value (degenerate: all such patches look alike)."""
        return self.array("entry_constant").astype(bool)

    def descriptors(self) -> np.ndarray:
        """float32 (M, D), in entry order."""
        return self.array("descriptors")

    def pair_distance(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances inside each class: float32 (P,) and int64 (C + 1,) offsets into it. A class of k entries owns
        k (k - 1) / 2 values, entry pairs (0, 1), (0, 2), ..., (1, 2), ...: the condensed form of scipy's pdist."""
        return self._derived("pairs", "pair_distance"), self._derived("pairs", "pair_offsets")

    def knn(self) -> tuple[np.ndarray, np.ndarray]:
        """The K nearest items of each item (see `items`): rows int64 (N, K), -1 padded; distances float32, NaN
        padded."""
        return self._derived("knn", "knn"), self._derived("knn", "knn_distance")

    def knn_other(self) -> tuple[np.ndarray, np.ndarray]:
        """As `knn`, among the items of other labels."""
        return self._derived("knn", "knn_other"), self._derived("knn", "knn_other_distance")

    def class_centroid(self) -> np.ndarray:
        """float32 (C, D): mean descriptor of each class's entries (not normalised), NaN for classes without entries."""
        return self._derived("centroids", "class_centroid")

    def nearest_class(self) -> tuple[np.ndarray, np.ndarray]:
        """The K classes with the nearest centroids: int64 (C, K), -1 padded; distances float32 (C, K), NaN padded."""
        return self._derived("centroids", "nearest_class"), self._derived("centroids", "nearest_class_distance")

    def index(self, factory: str | None = None, metric: str = "euclidean") -> Index:
        """The round's index over its items, or with 'Flat' the exact one, which every round has.

        Raises StoreError where the round was mined for another metric or has another index than asked for."""
        if metric != self.key["metric"]:
            raise StoreError(f"{self._name()} was mined for the {self.key['metric']} metric, not for {metric!r}")
        record = {"factory": "Flat", "metric": metric}
        content = None
        if factory != "Flat":
            record = self._record("index")
            if factory not in (None, record["asked"]):
                raise StoreError(f"{self._name()} has the index {record['asked']}, not {factory}: mine with that index")
            if record["factory"] != "Flat":
                content = self.array("index")
        items = self.items
        return open_index(record, content, self.descriptors()[items], self.entry_row[items], metric)

    def array(self, name: str) -> np.ndarray:
        """One array of the round by its name in the zarr group, whole. Raises StoreError where it is damaged, or was
        removed or derived anew since the round was opened: zarr would read what is left of it, and fill in the rest."""
        if name not in self._arrays:
            try:
                values = np.asarray(zarr.open_array(self.folder / name, mode="r")[:])
            except (OSError, ValueError, KeyError, BaseZarrError) as error:
                self._check_present(name)
                raise StoreError(f"{self._name()}: array {name} cannot be read ({error}). {self._remedy()}") from error
            self._check_present(name)
            values.flags.writeable = False
            self._arrays[name] = values
        return self._arrays[name]

    def damaged(self, *, checksums: bool = False, only: str | None = None) -> Iterator[Damage]:
        """The files of the round, or of the array `only`, that are missing or have another size than was recorded at
        the commit, or where asked another CRC-32, in the order of their names."""
        for array, files in sorted(self.attrs["files"].items()):
            if only is not None and array != only:
                continue
            for name, (size, crc) in sorted(files.items()):
                path = self.folder / name
                there = path.stat().st_size if path.is_file() else None
                if there is None:
                    yield Damage(array, name, "is missing")
                elif there != size:
                    yield Damage(array, name, f"has {there} bytes instead of {size}")
                elif checksums and file_crc(path) != crc:
                    yield Damage(array, name, "has another checksum than recorded")

    def check_files(self, *, checksums: bool = False, only: str | None = None) -> None:
        """Raises StoreError naming the first file that is `damaged`, and how to repair it."""
        for each in self.damaged(checksums=checksums, only=only):
            raise StoreError(
                f"{self._name()}: file {self.folder / each.file} of {each.array} {each.problem}. {self._remedy()}"
            )

    def sizes(self) -> dict[str, int]:
        """Bytes of each array, as recorded."""
        return {array: sum(size for size, _ in files.values()) for array, files in self.attrs["files"].items()}

    def _check_present(self, name: str) -> None:
        """Raises StoreError unless an array is on disk as this round says it is; of a draft only what is recorded."""
        if name not in self.attrs["files"]:
            return
        now = read_attributes(self.folder) or {}
        if now.get("key_hash") != self.attrs["key_hash"]:
            raise StoreError(f"{self._name()} was removed after it had been opened: open the mining store again")
        if now["files"].get(name) != self.attrs["files"][name]:
            raise StoreError(f"{self._name()}: {name} was derived anew after it had been opened: open the round again")
        self.check_files(only=name)

    def _derived(self, what: str, name: str) -> np.ndarray:
        self._record(what)
        return self.array(name)

    def _record(self, what: str) -> dict[str, Any]:
        if what not in self.attrs["derived"]:
            there = ", ".join(self.derived) or "nothing"
            raise StoreError(f"{self._name()} has no derived {what} (it has: {there}): mine again with --derive {what}")
        return self.attrs["derived"][what]

    def _name(self) -> str:
        return f"round {self.number} of {self.folder.parent.parent}"

    def _remedy(self) -> str:
        store = self.folder.parent.parent
        return (
            f"Recompute what is damaged, and nothing else: `hardmine mine STORE {store} --repair {self.number}`, with "
            f"the network. Delete that round (the folder {self.folder}) only where that is not possible."
        )


class MiningStore:
    """The rounds under one folder. Opening costs nothing and the folder need not exist yet."""

    def __init__(self, path: Path | str):
        self.path = Path(path)

    def rounds(self) -> list[Round]:
        """The committed rounds by ascending number. Raises StoreError where an attributes file is not readable."""
        found = []
        for folder in round_folders(self.path):
            attrs = read_attributes(folder)
            if attrs is not None and attrs.get("committed"):
                found.append(Round(folder, attrs))
        return found

    def open(self, which: int | str, *, check: bool = True) -> Round:
        """Round of that number, or 'latest'. Raises MissingError where there is none, InputError where `which` is
        neither, StoreError where one of its files is missing or short (not looked at where `check` is False)."""
        if isinstance(which, str) and which.isdigit():
            which = int(which)
        if not isinstance(which, int) and which != "latest":
            raise InputError(f"round {which!r}: give a number or 'latest'")
        rounds = self.rounds()
        chosen = rounds[-1:] if which == "latest" else [r for r in rounds if r.number == which]
        if not chosen:
            there = ", ".join(str(r.number) for r in rounds) or "none"
            raise MissingError(f"mining store {self.path} has no round {which} (committed rounds: {there})")
        return _whole(chosen[0]) if check else chosen[0]

    def find(self, key: Mapping[str, Any]) -> Round | None:
        """The committed round made from exactly this, or None. Raises StoreError where one of its files is missing."""
        wanted = key_hash(key)
        for each in self.rounds():
            if each.attrs["key_hash"] == wanted:
                return _whole(each)
        return None

    def require(self, key: Mapping[str, Any]) -> Round:
        """As `find`, but raises StoreError saying in which parts the nearest round differs from `key`."""
        found = self.find(key)
        if found is not None:
            return found
        rounds = self.rounds()
        if not rounds:
            raise StoreError(f"mining store {self.path} has no committed round: mine first")
        near = min(reversed(rounds), key=lambda each: len(differences(each.key, key)))
        parts = "; ".join(differences(near.key, key))
        raise StoreError(
            f"no round of {self.path} was made from this. The nearest, round {near.number}, differs in {parts}. "
            "Mine again with what is to be used now."
        )

    def prune(self, keep: int, pinned: Collection[int] = ()) -> list[int]:
        """Remove all committed rounds but the newest `keep` and the `pinned` numbers; returns the numbers removed.

        Raises InputError where keep is negative, LockedError while another process writes."""
        if keep < 0:
            raise InputError(f"keep must be 0 or more rounds, not {keep}")
        with write_lock(self.path, "mining store"):
            rounds = self.rounds()
            old = [r for r in rounds[: max(0, len(rounds) - keep)] if r.number not in pinned]
            for each in old:
                remove_folder(each.folder)
        return [each.number for each in old]


def _whole(found: Round) -> Round:
    """A round whose files are all there; as it is now, where something was derived anew while they were looked at.
    Raises StoreError."""
    try:
        found.check_files()
        return found
    except StoreError:
        now = read_attributes(found.folder)
        if now is None or now == found.attrs:
            raise
    found = Round(found.folder, now)
    found.check_files()
    return found


def round_folders(path: Path) -> list[Path]:
    """The folders of all rounds, committed or not, by number."""
    parent = path / ROUNDS
    if not parent.is_dir():
        return []
    return sorted(each for each in parent.iterdir() if re.fullmatch(r"\d{6,}", each.name) and each.is_dir())


def read_attributes(folder: Path) -> dict[str, Any] | None:
    """The attributes of a round's zarr group, None where it has none yet or is being removed. Raises StoreError where
    they cannot be read or are of a newer format."""
    try:
        content = (folder / "zarr.json").read_bytes()
    except FileNotFoundError:
        return None
    return parse_attributes(content, str(folder))


def parse_attributes(content: bytes, folder: str) -> dict[str, Any]:
    """The attributes in the `zarr.json` of a round, which lies in `folder`, a path or a URL. Raises StoreError."""
    try:
        attrs = json.loads(content).get("attributes", {})
        if attrs.get("committed") and (missing := {"key", "key_hash", "derived", "files"} - attrs.keys()):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (ValueError, AttributeError) as error:
        raise StoreError(
            f"{folder}/zarr.json is damaged ({error}). Delete the folder {folder} and mine again."
        ) from error
    if attrs.get("format", FORMAT) > FORMAT:
        raise StoreError(f"{folder} has format {attrs['format']}, this version reads up to {FORMAT}: update hardmine")
    return attrs


def remove_folder(folder: Path) -> None:
    """Remove a round so that it is gone at once for readers, even if the process dies half-way. Needs the write
    lock."""
    aside = folder.with_name(folder.name + REMOVED)
    if aside.exists():
        shutil.rmtree(aside)
    folder.rename(aside)
    shutil.rmtree(aside)


def file_crc(path: Path) -> int:
    """CRC-32 of a file's bytes."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc
