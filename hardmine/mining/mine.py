"""`mine`: patch store + network -> one committed round, found again by its content key."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError, NumericalError, UnknownNameError
from hardmine.mining.derive import derive as derive_one
from hardmine.mining.embed import Progress, device_of, embed_range, ready
from hardmine.mining.entries import Entries, list_entries
from hardmine.pipeline.views import Views
from hardmine.store.files import disk_errors, write_lock
from hardmine.store.fingerprint import Key, content_key
from hardmine.store.patches import PatchStore
from hardmine.store.round_writer import SHARD_ROWS, RoundWriter, begin, check_folder
from hardmine.store.rounds import DERIVED, LOG, MiningStore, Round, remove_folder

COLLAPSED = 1e-3  # root mean squared distance from the mean descriptor, over the descriptors' own length


@dataclass
class MineResult:
    """round: the committed round. embedded: entries that went through the network now. reused: the round was there
    before. seconds: of the whole call. messages: what a user should know, one line each."""

    round: Round
    embedded: int
    reused: bool
    seconds: float
    messages: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        attrs = self.round.attrs
        return {
            "round": self.round.number,
            "reused": self.reused,
            "embedded": self.embedded,
            "seconds": round(self.seconds, 3),
            **{name: attrs[name] for name in ("network", "step", "split", "spread", "counts", "derived")},
            "messages": self.messages,
        }


def mine(
    store: PatchStore,
    mining: Path,
    network: Any,
    *,
    split: str | None = None,
    views: Views | None = None,
    derive: Sequence[str] = ("pairs", "knn", "centroids", "index"),
    neighbours: int = 16,
    index: str = "Flat",
    device: torch.device | str | None = None,
    batch: int = 1024,
    step: int | None = None,
    progress: Progress | None = None,
    allow_collapsed: bool = False,
    shard_rows: int = SHARD_ROWS,
) -> MineResult:
    """Embed one split of a patch store and derive what was asked for, or find that it is there already.

    views: extend small classes by rotated views. derive: any of 'pairs', 'knn', 'centroids', 'index'; what a committed
    round lacks is derived from its descriptors. neighbours: K of the lists; a round with a larger K is used as it is,
    one with a smaller K gets its lists replaced by longer ones that begin with the same items. index: faiss factory
    string; 'Flat' is met by every round. device: None is where the network's weights are. step: training step,
    recorded. progress: called with (entries done, entries in all). allow_collapsed: commit a round whose descriptors
    all coincide. shard_rows: entries in a shard, the unit of resuming.

    A killed call, made again with the same arguments, keeps its finished shards and gives the same bits as one that was
    left alone. Raises LockedError while another process writes to `mining`, NumericalError where descriptors are not
    finite or have collapsed (nothing is committed then), DiskError where the disk is full.
    """
    started = time.monotonic()
    for what in derive:
        if what not in DERIVED:
            raise UnknownNameError("derivation", what, DERIVED)
    if neighbours < 1 or shard_rows < 1:
        raise InputError(f"neighbours ({neighbours}) and shard_rows ({shard_rows}) must be at least 1")
    split = store.resolve_split(split)
    key = content_key(
        network=network.identity(),
        views=None if views is None else views.model_dump(mode="json"),
        split=split,
        patches=store.fingerprint,
    )
    target = MiningStore(mining)
    check_folder(target.path)
    wanted = [what for what in DERIVED if what in derive]
    found = target.find(key)
    if found is not None and all(_is_met(found.attrs, what, neighbours, index) for what in wanted):
        message = f"round {found.number} was made from exactly this: nothing to embed"
        return MineResult(found, 0, True, time.monotonic() - started, [message])
    with write_lock(target.path, "mining store"), disk_errors(f"mining store {target.path}"):
        found = target.find(key)
        place = device_of(network) if device is None else torch.device(device)
        messages: list[str] = []
        if found is None:
            entries = list_entries(store, split, views)
            how = {"batch": batch, "device": place.type}
            writer = begin(target, key, (entries.row, entries.view, entries.offsets), network.dim, how, shard_rows)
            try:
                embedded = _embed(store, entries, writer, network, views, place, batch, progress)
                about = _describe(writer.round(), key, step, allow_collapsed, messages)
            except NumericalError:
                remove_folder(writer.folder)
                raise
        else:
            writer, embedded, about = RoundWriter.extend(found), 0, {}
            messages.append(f"round {found.number} was made from exactly this: nothing to embed")
        done = _derive(writer, wanted, neighbours, index, place, messages)
        result = writer.commit(about) if found is None else writer.round()
        seconds = time.monotonic() - started
        _log(target.path, result.number, embedded, done, seconds)
    return MineResult(result, embedded, found is not None, seconds, messages)


def _embed(
    store: PatchStore,
    entries: Entries,
    writer: RoundWriter,
    network: Any,
    views: Views | None,
    device: torch.device,
    batch: int,
    progress: Progress | None,
) -> int:
    """Fill the shards that are not there yet; returns the number of entries embedded."""
    embedded = done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, len(entries))

    with ready(network, device):
        for start, stop in writer.shards():
            if writer.shard_is_sound(start, stop):
                advance(stop - start)
                continue
            part = slice(start, stop)
            result = embed_range(
                store, entries.row[part], entries.view[part], network, views=views, batch=batch, progress=advance
            )
            writer.put_shard(start, result.descriptors, result.constant)
            embedded += stop - start
    return embedded


def _describe(draft: Round, key: Key, step: int | None, allow_collapsed: bool, messages: list[str]) -> dict[str, Any]:
    """Attributes of a finished embedding pass. Raises NumericalError where the descriptors have collapsed."""
    descriptors, constant = draft.descriptors(), int(draft.entry_constant().sum())
    spread, length = _spread(descriptors)
    if spread <= COLLAPSED * length and len(descriptors) > 1:
        problem = (
            f"the {len(descriptors)} descriptors of network {key['network']['network']} have collapsed: their root "
            f"mean squared distance from the mean is {spread:.2g} at a length of {length:.2g}"
        )
        if not allow_collapsed:
            raise NumericalError(
                f"{problem}. Nothing hard can be mined from them; use other weights or a lower "
                "learning rate. No round was written."
            )
        messages.append(problem)
    if constant:
        messages.append(f"{constant} of {len(descriptors)} entries are patches of one grey value (degenerate)")
    counts = {
        "entries": len(descriptors),
        "items": len(draft.items),
        "classes": int((np.diff(draft.entry_offsets) > 0).sum()),
        "degenerate": constant,
    }
    return {
        "network": key["network"]["network"],
        "step": step,
        "split": key["split"],
        "spread": spread,
        "counts": counts,
    }


def _spread(descriptors: np.ndarray, block: int = SHARD_ROWS) -> tuple[float, float]:
    """Root mean squared distance from the mean descriptor, and root mean squared length."""
    parts = [descriptors[i : i + block] for i in range(0, len(descriptors), block)]
    mean = sum(part.sum(0, dtype=np.float64) for part in parts) / len(descriptors)
    about_mean = sum(float(((part - mean) ** 2).sum()) for part in parts)
    squared = sum(float((part.astype(np.float64) ** 2).sum()) for part in parts)
    return float(np.sqrt(about_mean / len(descriptors))), float(np.sqrt(squared / len(descriptors)))


def _derive(
    writer: RoundWriter, wanted: list[str], neighbours: int, index: str, device: torch.device, messages: list[str]
) -> list[str]:
    """Derive what is missing or too short; returns what was derived."""
    done = []
    source = writer.round()
    for what in wanted:
        if _is_met(writer.attrs, what, neighbours, index) and writer.has_sound(what):
            continue
        if what in writer.attrs["derived"]:
            messages.append(f"round {writer.number}: {what} was derived with other options before and is replaced")
        arrays, record, said = derive_one(source, what, neighbours=neighbours, index=index, device=device)
        writer.record(what, arrays, record)
        messages += said
        done.append(what)
    return done


def _is_met(attrs: dict[str, Any], what: str, neighbours: int, index: str) -> bool:
    """Whether a round's record of a derivation answers what is asked."""
    record = attrs["derived"].get(what)
    if record is None:
        return False
    if what in ("knn", "centroids"):
        return record["neighbours"] >= neighbours
    return what != "index" or index in ("Flat", record["asked"])


def _log(path: Path, number: int, embedded: int, derived: list[str], seconds: float) -> None:
    """Append what must not be in the round itself, since it differs between equal rounds."""
    line = {
        "round": number,
        "embedded": embedded,
        "derived": derived,
        "seconds": round(seconds, 3),
        "host": socket.gethostname(),
        "torch_threads": torch.get_num_threads(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
    with open(path / LOG, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
