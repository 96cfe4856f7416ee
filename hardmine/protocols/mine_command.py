"""What `hardmine mine` does: a pass, derivations of a round that is there, or a repair, and then pruning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardmine.errors import InputError
from hardmine.mining.embed import Progress
from hardmine.mining.mine import mine, rederive
from hardmine.mining.repair import repair
from hardmine.pipeline.views import Views
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import DERIVED, MiningStore
from hardmine.train.ranks import default_device


@dataclass(frozen=True)
class Asked:
    """The options of the command, see `hardmine mine --help`."""

    split: str | None
    derive: tuple[str, ...]
    neighbours: int
    index: str
    knn_index: str | None
    views: int | None
    autocast: str | None
    compile: bool
    round: str | None
    replace: bool
    repair: str | None
    prune: int | None


def run_mine(
    store: Path,
    mining: Path,
    network: Any | None,
    asked: Asked,
    device: str | None,
    workers: int,
    scheduler: str | None,
    progress: Progress,
) -> dict[str, Any]:
    """Do what was asked; the result as a JSON object. device: see `default_device`; a repair is done on the kind of
    device that the round was embedded on. Raises InputError for options that exclude each other, or do nothing
    together."""
    if scheduler is None and (device is not None or asked.repair is None):
        device = str(default_device(device))
    _check(asked)
    hands: dict[str, Any] = {"workers": workers, "scheduler": scheduler, "progress": progress}
    which = {"neighbours": asked.neighbours, "index": asked.index, "knn_index": asked.knn_index}
    more: dict[str, Any] = {"derive": asked.derive, "replace": asked.replace, "device": device, **which}
    if asked.round is not None and (network is not None or asked.repair is not None):
        raise InputError("--round derives from a round that is there: leave out --checkpoint, --network and --repair")
    if (asked.round or asked.repair) and (asked.split or asked.views or asked.autocast or asked.compile):
        raise InputError(
            "a round has its split, views and precision: leave out --split, --views, --autocast, --compile"
        )
    if asked.repair is not None:
        patches = PatchStore.open(store)
        found = repair(patches, mining, asked.repair, network=network, device=device, **hands).json()
    elif asked.round is not None:
        if workers or scheduler:
            raise InputError("--workers and --scheduler embed; what is derived with --round is derived here")
        found = rederive(mining, asked.round, **more).json()
    else:
        found = mine(
            PatchStore.open(store),
            mining,
            network,
            split=asked.split,
            views=None if asked.views is None else Views(per_class=asked.views),
            autocast=asked.autocast,
            compile=asked.compile,
            **more,
            **hands,
        ).json()
    if asked.prune is not None:
        found["pruned_rounds"] = MiningStore(mining).prune(asked.prune, pinned={found["round"]})
    return found


def _check(asked: Asked) -> None:
    """Raises InputError for options of the derivations where none is made that they are for."""
    chosen = {
        "--index": (asked.index != "Flat", {"index"}),
        "--knn-index": (asked.knn_index is not None, {"knn"}),
        "--replace": (asked.replace, {"knn"}),
        "--neighbours": (asked.neighbours != 16, {"knn", "centroids", "index"}),
    }
    if asked.repair is not None and (set(asked.derive) != set(DERIVED) or any(given for given, _ in chosen.values())):
        raise InputError(
            f"--repair makes files again as they were: leave out --derive, {', '.join(chosen)}, or derive with --round"
        )
    for option, (given, what) in chosen.items():
        if given and not what & set(asked.derive):
            raise InputError(
                f"{option} is for --derive {' or '.join(sorted(what))}, and --derive names {', '.join(asked.derive)}"
            )
