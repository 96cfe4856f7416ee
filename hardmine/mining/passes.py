"""An embedding pass, shard by shard: in this process, in worker processes of this machine, or on a dask cluster.

A task is the range of entries of one shard of the descriptors, whatever patch shards its rows lie in; it is embedded
and written by one worker alone, and doing it again gives the same bytes. A worker loads the network once for a pass.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import zarr

from hardmine.errors import InputError, StoreError
from hardmine.mining.embed import Progress, embed_range, ready
from hardmine.mining.entries import Entries
from hardmine.mining.reuse import Earlier
from hardmine.pipeline.parallel import run_tasks
from hardmine.pipeline.views import Views
from hardmine.store.patches import PatchStore
from hardmine.store.round_writer import RoundWriter
from hardmine.store.rounds import Round

_loaded: dict[tuple[str, str, bool], Any] = {}  # the one network that this worker process has loaded
_loading = threading.Lock()


@dataclass(frozen=True)
class PackedNetwork:
    """A network as it travels to workers. content: its pickle, on the CPU and in evaluation mode; digest: hex sha256
    of it, by which a worker knows the one it has."""

    content: bytes
    digest: str

    @classmethod
    def pack(cls, network: Any) -> PackedNetwork:
        """Raises InputError for a network that cannot be pickled."""
        try:
            content = pickle.dumps(copy.deepcopy(network).cpu().eval())
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"network {network.name} cannot be sent to workers ({error}): define its class in an importable "
                "module, or mine with workers=0"
            ) from error
        return cls(content, hashlib.sha256(content).hexdigest())

    def load(self, device: str, compiled: bool) -> Any:
        """The network on `device`, loaded once in each process."""
        key = (self.digest, device, compiled)
        with _loading:
            if key not in _loaded:
                _loaded.clear()
                network = pickle.loads(self.content).to(device)
                _loaded[key] = torch.compile(network) if compiled else network
            return _loaded[key]


@dataclass(frozen=True)
class Manner:
    """How a network is applied. batch: entries at once. device: 'cpu', 'cuda', 'cuda:1'. dtype: see `embed_range`.
    compile: by `torch.compile`. All but the number of the device decide the bits of descriptors."""

    batch: int = 1024
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False

    def record(self) -> dict[str, Any]:
        """What a round says of it besides its key, which has the dtype."""
        kind = {"batch": self.batch, "device": torch.device(self.device).type}
        return {**kind, "compile": True} if self.compile else kind


@dataclass(frozen=True)
class ShardTask:
    """Entries of one shard, from number `start` on. known: int64 (n,), the entry of an earlier round that is the same
    (row, view), -1 where there is none; None where there is no earlier round."""

    start: int
    row: np.ndarray
    view: np.ndarray
    known: np.ndarray | None


@dataclass(frozen=True)
class EmbedShard:
    """Do one ShardTask. network: one that is `ready`, or a PackedNetwork. earlier: the round to copy from."""

    store: PatchStore
    network: Any
    views: Views | None
    manner: Manner
    writer: RoundWriter
    earlier: Round | None

    def __call__(self, task: ShardTask, advance: Callable[[int], None]) -> int:
        """Embed and write the shard; returns the number of entries that went through the network."""
        network = self.network
        if isinstance(network, PackedNetwork):
            network = network.load(self.manner.device, self.manner.compile)
        count = len(task.row)
        fresh = np.ones(count, bool) if task.known is None else task.known < 0
        result = embed_range(
            self.store,
            task.row[fresh],
            task.view[fresh],
            network,
            views=self.views,
            batch=self.manner.batch,
            dtype=self.manner.dtype,
            progress=advance,
        )
        descriptors, constant = result.descriptors, result.constant
        if self.earlier is not None and task.known is not None and not fresh.all():
            descriptors, constant = np.empty((count, descriptors.shape[1]), np.float32), np.zeros(count, bool)
            descriptors[fresh], constant[fresh] = result.descriptors, result.constant
            descriptors[~fresh], constant[~fresh] = self._copied(self.earlier, task.known[~fresh])
            advance(count - int(fresh.sum()))
        self.writer.put_shard(task.start, descriptors, constant)
        return int(fresh.sum())

    @staticmethod
    def _copied(earlier: Round, entry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Descriptors and constant flags of entries of the earlier round; the range that holds them is read."""
        first, last = int(entry.min()), int(entry.max()) + 1
        part: list[Any] = [
            np.asarray(zarr.open_array(earlier.folder / name, mode="r")[first:last])[entry - first]
            for name in ("descriptors", "entry_constant")
        ]
        if not np.isfinite(part[0]).all():
            raise StoreError(f"{earlier} has lost descriptors while they were copied: repair it, then mine again")
        return part[0], part[1].astype(bool)


def run_pass(
    store: PatchStore,
    entries: Entries,
    writer: RoundWriter,
    network: Any,
    views: Views | None,
    manner: Manner,
    *,
    earlier: Earlier | None = None,
    only: set[int] | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Fill the shards that are not there yet (only: those that start at these entries); returns the number of entries
    embedded. workers, scheduler: see `run_tasks`. What was there, and entries that are copied, count as done."""
    total = done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    shards = [each for each in writer.shards() if only is None or each[0] in only]
    total = sum(stop - start for start, stop in shards)
    source = None if earlier is None else earlier.round.absolute()
    tasks = []
    for start, stop in shards:
        if writer.shard_is_sound(start, stop):
            advance(stop - start)
            continue
        known = None if earlier is None else earlier.entry[start:stop]
        tasks.append(ShardTask(start, entries.row[start:stop], entries.view[start:stop], known))
    if workers or scheduler is not None:
        function = EmbedShard(store, PackedNetwork.pack(network), views, manner, writer.absolute(), source)
        return sum(n for _, n in run_tasks(function, tasks, workers=workers, scheduler=scheduler, progress=advance))
    with ready(network, manner.device):
        applied = torch.compile(network) if manner.compile else network
        function = EmbedShard(store, applied, views, manner, writer, source)
        return sum(n for _, n in run_tasks(function, tasks, progress=advance))
