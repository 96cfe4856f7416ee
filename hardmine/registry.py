"""Finding an implementation by its name: one class for readers, networks, samplers, miners, losses and protocols."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from hardmine.errors import InputError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to implementations. The modules of the package `home`, and of packages in it, register themselves; they are
    imported on the first look-up, so that a new file there is a new choice and `hardmine --help` imports none."""

    def __init__(self, kind: str, home: str):
        self.kind, self.home = kind, home
        self._known: dict[str, T] = {}
        self._families: dict[str, Callable[[str], T]] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Class decorator: make the decorated object known as `name`. Raises InputError if the name is taken."""

        def keep(thing: T) -> T:
            if name in self._known:
                raise InputError(f"{self.kind} {name!r} is registered twice")
            self._known[name] = thing
            return thing

        return keep

    def family(self, prefix: str) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
        """Function decorator: what is called `prefix:NAME` is what the decorated function makes of NAME."""

        def keep(make: Callable[[str], T]) -> Callable[[str], T]:
            self._families[prefix] = make
            return make

        return keep

    def names(self) -> list[str]:
        """All known names, sorted; not those of a `family`, which may be without end."""
        if not self._loaded:
            for module in pkgutil.walk_packages(importlib.import_module(self.home).__path__, f"{self.home}."):
                importlib.import_module(module.name)
            self._loaded = True
        return sorted(self._known)

    def get(self, name: str) -> T:
        """The implementation called `name`. Raises UnknownNameError with the nearest known name."""
        if name not in self._known and name not in self.names():
            prefix, colon, rest = name.partition(":")
            if colon and prefix in self._families:
                return self._families[prefix](rest)
            raise UnknownNameError(self.kind, name, [*self._known, *(f"{prefix}:NAME" for prefix in self._families)])
        return self._known[name]
