"""`evaluate`: figures from a committed round whose key fits, or from a round that is mined for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError, StoreError
from hardmine.mining.embed import embed_entries
from hardmine.mining.mine import mine
from hardmine.protocols.base import Describe, Evaluated, require_figure
from hardmine.protocols.base import protocol as build_protocol
from hardmine.protocols.contenders import contenders
from hardmine.protocols.described import Described
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import MiningStore, Round
from hardmine.train.networks import Network
from hardmine.train.ranks import default_device
from hardmine.train.recipe import Evaluation, Recipe, Validation


@dataclass
class Report:
    """results: descriptor name to what was measured. embedded: rows embedded for it (0: rounds were reused). round:
    number of the evaluated network's round, None where there was only what was compared. messages: what the user
    should know."""

    protocol: str
    store: Path
    results: dict[str, Evaluated]
    embedded: int
    round: int | None
    messages: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "protocol": self.protocol,
            "store": str(self.store),
            "round": self.round,
            "embedded": self.embedded,
            "messages": self.messages,
            "results": {
                name: {**r.facts, **r.metrics, **({"details": r.details} if r.details else {})}
                for name, r in self.results.items()
            },
        }


def evaluate(
    protocol: str,
    store: str | Path,
    mining: str | Path,
    *,
    network: Network | None = None,
    name: str | None = None,
    round: int | str | None = None,
    split: str | None = None,
    options: Mapping[str, Any] | None = None,
    compare: Sequence[str] = (),
    plot: str | Path | None = None,
    histogram: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Evaluate one network, or one committed round, on a patch store, and what it is compared with.

    network: its round in the mining store `mining` is found by content key, or mined. round: the number of a committed
    round, or 'latest', in place of a network; it must be a round of this store. Without both, and without `compare`,
    the latest; with `compare`, only that is evaluated. name: what the row is called. options: of the protocol. compare:
    see `contenders`; networks among them are embedded once, through rounds, too. plot, histogram: where to draw the
    protocol's figures (PNG); what forbids it is said before the work. Raises InputError, MissingError, StoreError.
    """
    if network is not None and round is not None:
        raise InputError("give either a network to evaluate or a committed round, not both")
    device = default_device(device)
    opened, method = PatchStore.open(store), build_protocol(protocol, options)
    if plot is not None:
        require_figure(method, protocol, "plot", Path(plot))
    if histogram is not None:
        require_figure(method, protocol, "histogram", Path(histogram))
    splits = method.splits(opened, split)
    chosen: list[Round] = []
    if network is None and (round is not None or not compare):
        chosen = _committed(MiningStore(mining), "latest" if round is None else round, opened, splits)
    label = name or (network.name if network is not None else _network_name(chosen[0]) if chosen else "")
    results: dict[str, Evaluated] = {}
    messages: list[str] = []
    embedded = 0

    def mined(what: Network, where: Path, said_of: str = "") -> list[Round]:
        nonlocal embedded
        rounds = []
        for each in splits:
            found = mine(opened, where, what, split=each, derive=(), device=device, progress=progress)
            embedded += found.embedded
            messages.extend(said_of + message for message in found.messages)
            rounds.append(found.round)
        return rounds

    for rival in contenders(compare, taken=label):
        if rival.network is not None:
            describe: Describe = Described(*mined(rival.network, rival.mining or Path(mining), f"{rival.label}: "))
        else:
            assert rival.describe is not None  # a contender has one of the two
            describe = rival.describe(opened)
        results[rival.label] = method.evaluate(opened, describe, split)
    if network is not None:
        chosen = mined(network, Path(mining))
    if chosen:
        results[label] = method.evaluate(opened, Described(*chosen), split)
    if any(r.facts.get("partial") for r in results.values()):
        messages.append("partial: this is not the whole published test set; the facts say what is missing")
    if plot is not None:
        method.plot(results, Path(plot))
    if histogram is not None:
        method.histogram(results, Path(histogram))
    return Report(protocol, Path(store), results, embedded, chosen[0].number if chosen else None, messages)


def _committed(mining: MiningStore, which: int | str, store: PatchStore, splits: list[str]) -> list[Round]:
    """A committed round for each split: the round itself where there is one split, else it and the latest round of the
    same network over each other split. Raises StoreError."""
    first = mining.open(which)
    if first.key["patches"] != store.fingerprint or first.split not in splits:
        wanted = " or ".join(repr(each) for each in splits)
        raise StoreError(
            f"round {first.number} of {mining.path} was mined over the split {first.split!r} of another patch store or "
            f"of another state of it, not over {wanted} of {store.path}: mine it, or name another round"
        )
    found = {first.split: first}
    for each in mining.rounds():
        same = {**each.key, "split": ""} == {**first.key, "split": ""}
        if same and each.split in splits and each.split != first.split:
            found[each.split] = mining.open(each.number)
    missing = [each for each in splits if each not in found]
    if missing:
        raise StoreError(
            f"round {first.number} of {mining.path} is over {first.split!r}, and no round of the same network is over "
            f"{missing[0]!r}: mine it, or give the network"
        )
    return [found[each] for each in splits]


def _network_name(used: Round) -> str:
    return str(used.key["network"]["network"])


def score(network: Network, evaluation: Evaluation, device: torch.device) -> dict[str, float]:
    """The metrics of a network as it is, during training: embeds what the protocol asks for and keeps nothing. A
    validation's metric may be one of the protocol's details."""
    store = PatchStore.open(evaluation.store)

    def describe(rows: np.ndarray) -> np.ndarray:
        return embed_entries(store, rows, None, network, device=device)

    found = build_protocol(evaluation.protocol, evaluation.options).evaluate(store, describe, evaluation.split)
    chosen = evaluation.metric if isinstance(evaluation, Validation) else None
    return found.metrics | {name: value for name, value in found.details.items() if name == chosen}


def splits_of(evaluation: Evaluation) -> list[str]:
    """The splits of its store that an evaluation describes. Raises UnknownNameError, InputError, MissingError."""
    method = build_protocol(evaluation.protocol, evaluation.options)
    return method.splits(PatchStore.open(evaluation.store), evaluation.split)


def check_evaluations(recipe: Recipe) -> None:
    """Raises UnknownNameError or InputError where a recipe evaluates or validates with a protocol, with options or on a
    split that do not exist, MissingError where the store does not: to be said before the training, not after it."""
    for each in (*recipe.evaluation, *((recipe.validation,) if recipe.validation is not None else ())):
        splits_of(each)
