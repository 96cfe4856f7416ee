"""The network that options name: of a run, of a weights file, or freshly initialised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardmine.errors import InputError
from hardmine.train.networks import Network, build, load_weights
from hardmine.train.runs import load


def chosen_network(
    checkpoint: Path | None, name: str | None, weights: Path | None, seed: int, options: Mapping[str, Any]
) -> tuple[Network, str]:
    """The network in eval mode, and what to call it.

    checkpoint: a run's folder or its weights file. name: of a network, with `options`, and `weights` or initial ones of
    `seed`. Raises InputError unless exactly one of the two is given, with what goes with it alone."""
    if (checkpoint is None) == (name is None):
        raise InputError("give either --checkpoint RUN or --network NAME (with --weights FILE, or untrained)")
    if checkpoint is not None:
        if weights is not None or options or seed:
            raise InputError("--weights, --seed and --set go with --network, not with --checkpoint")
        return load(checkpoint), checkpoint.name or str(checkpoint)
    assert name is not None  # said above
    if weights is not None and seed:
        raise InputError("--seed is of initial weights, and --weights gives others: leave one out")
    network = build(name, options, seed)
    if weights is not None:
        load_weights(network, weights)
    return network.eval(), f"{name} ({weights.name if weights else 'untrained'})"


def default_mining(store: Path, checkpoint: Path | None) -> Path:
    """The mining store to use where none is named: that of the run `checkpoint`, where it is one, else STORE.mining."""
    if checkpoint is not None and checkpoint.is_dir():
        return checkpoint / "mining"
    return Path(f"{str(store).rstrip('/')}.mining")
