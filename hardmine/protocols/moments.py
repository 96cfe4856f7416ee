"""The weights of a run over time: what it kept on the way, and what it ended with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardmine.errors import InputError, MissingError
from hardmine.train import checkpoint
from hardmine.train.networks import Network, build, load_weights
from hardmine.train.runs import Run, about_weights


@dataclass(frozen=True)
class Moment:
    """step: optimiser steps done. weights: their file. sampler: the sampler's state then; None: it is not known."""

    step: int
    weights: Path
    sampler: dict[str, Any] | None

    def network(self, run: Run) -> Network:
        """The network of `run` with these weights, in eval mode on the CPU."""
        network = build(run.recipe.network.name, run.recipe.network.options)
        load_weights(network, self.weights)
        return network.eval()


def moments(run: Run, steps: Sequence[int] | None = None) -> tuple[list[Moment], list[str]]:
    """The moments of `run`, or those of `steps`, by step, and what is to be said of them.

    They are the kept weights (recipe: `train.keep_every`) and the final ones, or the newest checkpoint's of a run that
    is not finished. Raises MissingError where there are none, InputError where one of `steps` is not among them.
    """
    found = {step: Moment(step, file, about_weights(file)["sampler"]) for step, file in run.kept().items()}
    messages = []
    if not found:
        messages.append(
            "the run kept no weights on the way, so this is one point in time: train with train.keep_every=N to keep "
            "those of every N-th step"
        )
    newest, result = checkpoint.last(run.path / "checkpoints"), run.result
    if result is not None or newest is not None:
        step = result["weights_of_step"] if result is not None else newest.step if newest is not None else 0
        known = newest.state["sampler"] if newest is not None and newest.step == step else None
        found.setdefault(step, Moment(step, run.weights, known))
    if not found:
        raise MissingError(f"{run.path} has no weights yet: train has not reached its first checkpoint")
    chosen = sorted(found) if steps is None else sorted(set(steps))
    missing = [step for step in chosen if step not in found]
    if missing:
        raise InputError(
            f"{run.path} has no weights of step {missing[0]}; it has those of {', '.join(map(str, sorted(found)))}"
        )
    return [found[step] for step in chosen], messages
