"""`evaluate`: figures from a committed round whose key fits, or from a round that is mined for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError, StoreError
from hardmine.mining.embed import embed_entries
from hardmine.mining.mine import mine
from hardmine.protocols.base import Describe, Evaluated, protocols
from hardmine.protocols.baselines import baseline
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import MiningStore, Round
from hardmine.train.networks import Network
from hardmine.train.recipe import Evaluation


@dataclass
class Report:
    """results: descriptor name to what was measured. embedded: rows embedded for it (0: a round was reused).
    round: number of the round used. messages: what the user should know."""

    protocol: str
    store: Path
    results: dict[str, Evaluated]
    embedded: int
    round: int
    messages: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "protocol": self.protocol,
            "store": str(self.store),
            "round": self.round,
            "embedded": self.embedded,
            "messages": self.messages,
            "results": {name: {**r.facts, **r.metrics} for name, r in self.results.items()},
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
    pairs: str | None = None,
    compare: Sequence[str] = (),
    roc: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Evaluate one network, or one committed round, on a patch store.

    network: its round in the mining store `mining` is found by content key, or mined. round: the number of a committed
    round, or 'latest' (the default), in place of a network; it must be a round of this store. name: what the row is
    called. compare: baselines by name, in the same report. roc: where to draw the ROC curves (PNG). Raises InputError,
    MissingError, StoreError.
    """
    opened, method = PatchStore.open(store), protocols.get(protocol)()
    split = opened.resolve_split(split)
    if network is not None and round is not None:
        raise InputError("give either a network to evaluate or a committed round, not both")
    if network is not None:
        mined = mine(opened, Path(mining), network, split=split, derive=(), device=device, progress=progress)
        used, embedded, messages = mined.round, mined.embedded, list(mined.messages)
    else:
        used, embedded, messages = MiningStore(mining).open("latest" if round is None else round), 0, []
        if used.key["patches"] != opened.fingerprint or used.key["split"] != split:
            raise StoreError(
                f"round {used.number} of {mining} was mined over the split {used.key['split']!r} of another patch "
                f"store or of another state of it, not over {split!r} of {store}: mine it, or name another round"
            )
    results = {other: method.evaluate(opened, baseline(opened, other), split, pairs) for other in compare}
    label = name or str(used.key["network"]["network"])
    results[label] = method.evaluate(opened, from_round(used), split, pairs)
    if any(r.facts.get("partial") for r in results.values()):
        messages.append("partial: pairs were lost to rejected patches, so this is not the published test set")
    if roc is not None:
        method.plot(results, Path(roc))
    return Report(protocol, Path(store), results, embedded, used.number, messages)


def from_round(used: Round) -> Describe:
    """Descriptors of rows, read from a committed round's items."""
    order = used.items[np.argsort(used.entry_row[used.items], kind="stable")]
    rows, descriptors = used.entry_row[order], used.descriptors()

    def describe(wanted: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
        if (rows[place] != wanted).any():
            missing = wanted[rows[place] != wanted]
            raise StoreError(f"round {used.number} has no descriptor of {len(missing)} rows, the first {missing[0]}")
        return descriptors[order[place]]

    return describe


def score(network: Network, evaluation: Evaluation, device: torch.device) -> dict[str, float]:
    """The metrics of a network as it is, during training: embeds what the protocol asks for and keeps nothing."""
    store = PatchStore.open(evaluation.store)

    def describe(rows: np.ndarray) -> np.ndarray:
        return embed_entries(store, rows, None, network, device=device)

    return protocols.get(evaluation.protocol)().evaluate(store, describe, evaluation.split, None).metrics
