"""What every sampler is: the plans of a range of steps, each a function of the seed, the step and what was mined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from torch.utils.data import Sampler as TorchSampler

from hardmine.errors import StoreError
from hardmine.mining.class_distances import Distances
from hardmine.mining.entries import Entries
from hardmine.mining.plan import Plan
from hardmine.options import Options
from hardmine.registry import Registry
from hardmine.store.rounds import Round


class Sampler(TorchSampler[Plan]):
    """A torch batch sampler of plans: `DataLoader(dataset, batch_sampler=sampler)`.

    entries: of one split. seed: every plan is a function of (seed, step) and of what was recorded or mined before,
    never of the number of workers. `needs_distances`: it must be given a round's distances within classes
    (`distances`); `needs_nearest`: so many nearest classes of each class (`use_nearest`), 0 for none. `rounds_from`:
    the step from which it needs them; plans of earlier steps are drawn evenly.
    """

    Options: ClassVar[type[Options]] = Options
    needs_distances: bool = False
    needs_nearest: int = 0

    def __init__(self, entries: Entries, options: Any = None, *, seed: int = 0):
        self.entries, self.seed = entries, seed
        self.options = self.Options() if options is None else options
        self.distances: Distances | None = None
        self.nearest: np.ndarray | None = None
        self.rounds_from = 0
        self._steps = range(0)

    def between(self, first: int, stop: int) -> Sampler:
        """Make iterating deliver the plans of steps first .. stop - 1. Returns self."""
        self._steps = range(first, stop)
        return self

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Plan]:
        return map(self.plan, self._steps)

    @property
    def steps_per_pass(self) -> int:
        """How many batches a pass over all usable classes has, the last, smaller one dropped; 1 or more."""
        raise NotImplementedError(f"{type(self).__name__} does not say how long a pass is")

    def plan(self, step: int) -> Plan:
        """The batch of `step`. Raises StoreError where it needs a round that it was not given."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a batch is")

    @property
    def items(self) -> int | None:
        """What processes share of a batch: its pairs, or its single items; None where only a plan tells."""
        return None

    def use_nearest(self, nearest: np.ndarray, source: Round | None, step: int) -> None:
        """Plan with these nearest classes, int64 (C, K), nearest first, -1 for none: those of the round `source`, mined
        at `step`, that may be each other's negatives. source: None where there is no round, for samplers that need no
        more than the lists."""
        self.nearest = nearest

    def record(self, step: int, loss: SupportsFloat) -> None:
        """Tell the sampler the mean unweighted loss of a step (a number, or a tensor not read back yet)."""

    def state(self, step: int) -> dict[str, Any]:
        """What a run that continues at `step` needs beyond the seed; JSON."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Go back to a `state`."""

    def scalars(self, step: int) -> dict[str, float]:
        """The sampler's own numbers for the log."""
        return {}

    def waits(self, step: int) -> bool:
        """Whether `step` is before the first round, so that its plan is drawn evenly. Raises StoreError where it is
        not, and the sampler was not given what it needs of a round."""
        if step < self.rounds_from:
            return True
        if self.needs_distances and self.distances is None:
            raise StoreError("this sampler needs the distances of a mining round: set `sampler.distances` first")
        if self.needs_nearest and self.nearest is None:
            raise StoreError("this sampler needs the nearest classes of a mining round: call `use_nearest` first")
        return False

    def random(self, step: int, stream: int = 0) -> np.random.Generator:
        """The random numbers of `step`; further streams are independent of the first."""
        return np.random.Generator(np.random.Philox(key=[self.seed, step], counter=[0, 0, 0, stream]))


samplers: Registry[type[Sampler]] = Registry("sampler", "hardmine.mining.samplers")
