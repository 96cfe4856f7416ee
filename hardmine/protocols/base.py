"""What an evaluation protocol is: a patch store and a way to describe its rows in, figures out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from hardmine.errors import InputError
from hardmine.options import Options as ProtocolOptions
from hardmine.options import check
from hardmine.registry import Registry
from hardmine.store.files import require_folder
from hardmine.store.patches import PatchStore

Describe = Callable[[np.ndarray], np.ndarray]  # int64 (n,) rows -> float32 (n, D) descriptors
Curve = tuple[np.ndarray, np.ndarray]  # x and y to draw


@dataclass
class Evaluated:
    """What one descriptor came to.

    metrics: the few headline numbers, name to value; see `hardmine.metrics.LOWER_IS_BETTER` for their direction. facts:
    what the figures were measured on, JSON. details: every further cell, name to value. Rates are in 0..1. curves: what
    `plot` and `histogram` draw, by name, small.
    """

    metrics: dict[str, float]
    facts: dict[str, Any] = field(default_factory=dict)
    details: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)


class Protocol:
    """One published evaluation with its options. `evaluate` measures descriptors on a split of a store."""

    Options: ClassVar[type[ProtocolOptions]] = ProtocolOptions

    def __init__(self, options: ProtocolOptions):
        self.options = options

    def splits(self, store: PatchStore, split: str | None) -> list[str]:
        """The splits whose rows `evaluate` asks descriptors for. Raises as `PatchStore.resolve_split`."""
        return [store.resolve_split(split)]

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None) -> Evaluated:
        """Raises InputError where the store does not hold what the protocol needs."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it evaluates")

    def plot(self, results: dict[str, Evaluated], file: Path) -> None:
        """Draw the protocol's figure of several descriptors, by name, to a PNG. Raises InputError where it has none."""
        raise InputError(f"{type(self).__name__} draws no figure: leave out --plot")

    def histogram(self, results: dict[str, Evaluated], file: Path) -> None:
        """Draw the similarities of matching and non-matching pairs to a PNG. Raises InputError where there are none."""
        raise InputError(f"{type(self).__name__} draws no histogram: leave out --histogram")


def require_figure(method: Protocol, name: str, figure: Literal["plot", "histogram"], file: Path) -> None:
    """What would keep a figure from being drawn, said before the work. name: of the protocol. Raises InputError where
    it draws no such figure or `file` is no name of a PNG, MissingError where its folder is not there."""
    if getattr(type(method), figure) is getattr(Protocol, figure):
        raise InputError(f"protocol {name!r} draws no {figure}: leave out --{figure}")
    if file.suffix.lower() != ".png" or file.is_dir():
        raise InputError(f"--{figure} {file}: figures are written as PNG; give the name of a .png file")
    require_folder(file)


protocols: Registry[type[Protocol]] = Registry("protocol", "hardmine.protocols")


def protocol(name: str, options: Mapping[str, Any] | None = None) -> Protocol:
    """The protocol called `name` with `options`. Raises UnknownNameError for an unknown protocol or option, InputError
    for an unfit value."""
    kind = protocols.get(name)
    return kind(check(kind.Options, options or {}, f"the options of protocol {name!r}"))
