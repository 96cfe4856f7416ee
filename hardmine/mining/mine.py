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

from hardmine.errors import InputError, NumericalError
from hardmine.mining.derived import Wanted, derive_missing
from hardmine.mining.embed import Progress, default_batch, device_of, half_precision
from hardmine.mining.entries import list_entries
from hardmine.mining.passes import Manner, run_pass
from hardmine.mining.reuse import find_earlier
from hardmine.pipeline.views import Views
from hardmine.store.files import disk_errors, write_lock
from hardmine.store.fingerprint import Key, content_key, shards_digest
from hardmine.store.patches import PatchStore
from hardmine.store.round_writer import SHARD_ROWS, RoundWriter, begin, check_folder
from hardmine.store.rounds import LOG, MiningStore, Round, remove_folder

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
    knn_index: str | None = None,
    replace: bool = False,
    device: torch.device | str | None = None,
    batch: int | None = None,
    autocast: str | None = None,
    compile: bool = False,
    workers: int = 0,
    scheduler: str | None = None,
    step: int | None = None,
    progress: Progress | None = None,
    allow_collapsed: bool = False,
    shard_rows: int = SHARD_ROWS,
) -> MineResult:
    """Embed one split of a patch store and derive what was asked for, or find that it is there already.

    views: extend small classes by rotated views. derive: any of 'pairs', 'knn', 'centroids', 'index'; what a committed
    round lacks is derived from its descriptors, see `rederive`, as are neighbours (K of the lists), index (a faiss
    factory string; 'Flat' is met by every round), knn_index and replace. device: None is where the network's weights
    are. batch: entries embedded at once, None is what the network says. autocast: 'bfloat16' or 'float16', part of the
    content key. compile: by torch.compile. workers, scheduler: who embeds, see `run_tasks`; 0 is this process, which
    derives in any case, on the CPU where `device` is one that only the workers have. step: training step, recorded.
    progress: called with (entries done, entries in all). allow_collapsed: commit a round whose descriptors all
    coincide. shard_rows: entries in a shard, the unit of work and of resuming.

    After an append to the patch store, entries that an earlier round of it has are copied from there. A killed call,
    made again with the same arguments, keeps its finished shards and gives the same bits as one that was left alone.

    Raises LockedError while another process writes to `mining`, StoreError where the round is there and damaged (see
    `repair`), NumericalError where descriptors are not finite or have collapsed (nothing is committed then), DiskError
    where the disk is full.
    """
    started = time.monotonic()
    wanted = Wanted(tuple(derive), neighbours, index, knn_index, replace)
    half_precision(autocast or "float32")
    if shard_rows < 1:
        raise InputError(f"shard_rows must be at least 1, not {shard_rows}")
    split = store.resolve_split(split)
    key = content_key(
        network=network.identity(),
        views=None if views is None else views.model_dump(mode="json"),
        split=split,
        patches=store.fingerprint,
        dtype=autocast or "float32",
    )
    target = MiningStore(mining)
    check_folder(target.path)
    found = target.find(key)
    if found is not None and wanted.all_met(found.attrs):
        message = f"round {found.number} was made from exactly this: nothing to embed"
        return MineResult(found, 0, True, time.monotonic() - started, [message])
    with write_lock(target.path, "mining store"), disk_errors(f"mining store {target.path}"):
        found = target.find(key)
        place = device_of(network) if device is None else torch.device(device)
        messages: list[str] = []
        if found is None:
            entries, manner = (
                list_entries(store, split, views),
                Manner(default_batch(network) if batch is None else batch, str(place), key["dtype"], compile),
            )
            how = manner.record()
            earlier = find_earlier(target, key, store, entries, how, messages)
            if earlier is not None:
                how["copied_from"] = earlier.round.attrs["key_hash"]
            writer = begin(target, key, (entries.row, entries.view, entries.offsets), network.dim, how, shard_rows)
            hands: dict[str, Any] = {"workers": workers, "scheduler": scheduler, "progress": progress}
            try:
                embedded = run_pass(store, entries, writer, network, views, manner, earlier=earlier, **hands)
                about = _describe(writer.round(), key, step, allow_collapsed, messages)
            except NumericalError:
                remove_folder(writer.folder)
                raise
            about["patch_shards"] = shards_digest(store.shard_fingerprints)
            if earlier is not None:
                known = int((earlier.entry >= 0).sum())
                messages.append(f"{known} of {len(entries)} entries are those of round {earlier.round.number}")
        else:
            writer, embedded, about = RoundWriter.extend(found), 0, {}
            messages.append(f"round {found.number} was made from exactly this: nothing to embed")
        here = place if place.type != "cuda" or torch.cuda.is_available() else torch.device("cpu")
        done = derive_missing(writer, wanted, here, messages)
        result = writer.commit(about) if found is None else writer.round()
        seconds = time.monotonic() - started
        _log(target.path, result.number, embedded, done, seconds)
    return MineResult(result, embedded, found is not None, seconds, messages)


def rederive(
    mining: Path,
    which: int | str = "latest",
    *,
    derive: Sequence[str] = ("pairs", "knn", "centroids", "index"),
    neighbours: int = 16,
    index: str = "Flat",
    knn_index: str | None = None,
    replace: bool = False,
    device: torch.device | str | None = None,
) -> MineResult:
    """Derive from the descriptors of a committed round, without network and patch store.

    which: number of the round, or 'latest'. derive, neighbours, index: as in `mine`. knn_index: None takes the lists
    that are there, or compares all with all; 'Flat' does the latter; any other faiss factory string finds the lists
    through such an index, and exact lists answer it too. Longer lists of the same kind begin with the same items and
    take the place of shorter ones, and an index, which is a cache, that of another; any other change needs `replace`.

    Raises StoreError where there are lists of another kind and `replace` was not given, or the round is damaged."""
    started, messages = time.monotonic(), list[str]()
    wanted = Wanted(tuple(derive), neighbours, index, knn_index, replace)
    target = MiningStore(mining)
    found = target.open(which)
    if wanted.all_met(found.attrs):
        messages.append(f"round {found.number} has all of it: nothing to derive")
        return MineResult(found, 0, True, time.monotonic() - started, messages)
    with write_lock(target.path, "mining store"), disk_errors(f"mining store {target.path}"):
        writer = RoundWriter.extend(target.open(found.number))
        done = derive_missing(writer, wanted, torch.device("cpu" if device is None else device), messages)
        seconds = time.monotonic() - started
        _log(target.path, found.number, 0, done, seconds)
    return MineResult(writer.round(), 0, True, seconds, messages)


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
