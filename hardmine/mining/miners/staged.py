"""Miners that change over a run: the loop tells them how far it is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Staged(Protocol):
    """A miner whose choice depends on the progress of the run. Before each step the loop does

        if isinstance(miner, Staged):
            miner.advance(step / steps)

    Progress is a function of the step, so a resumed run needs no state of the miner."""

    def advance(self, progress: float) -> None:
        """Choose from now on as at `progress` in [0, 1]; before the first call it is 0. Raises InputError outside."""
        ...
