"""Errors that a user can act on: what happened, where, and what to do next.

One base, `HardmineError`; each subclass is also the matching builtin, so a plain `except ValueError` works. The
command line prints the message without a traceback and exits with `exit_code` (1: it failed, 2: bad usage or input).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HardmineError(Exception):
    """Base of every error hardmine raises on purpose."""

    exit_code = 1


class InputError(HardmineError, ValueError):
    """The user's data, path, option or recipe cannot be used as it is."""

    exit_code = 2


class MissingError(HardmineError, FileNotFoundError):
    """A file, store, round or run that was asked for is not there."""

    exit_code = 2

    def __str__(self) -> str:  # FileNotFoundError would print errno fields
        return " ".join(str(a) for a in self.args)


class UnknownNameError(InputError, KeyError):
    """A name that is in no registry, or a key that is in no recipe; carries the nearest known name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Known: {', '.join(known) or 'none'}.")

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])


class StoreError(HardmineError, RuntimeError):
    """A store on disk is damaged, unfinished, or made from something else than what was asked for."""


class LockedError(StoreError):
    """Another process is writing to this store."""


class DiskError(HardmineError, OSError):
    """Writing failed (disk full, quota, file too large); nothing half-written was left in place."""

    def __str__(self) -> str:
        return " ".join(str(a) for a in self.args)


class Stopped(HardmineError):
    """A training was asked to end (SIGTERM), and has written a checkpoint to go on from."""

    exit_code = 143  # 128 + SIGTERM, as a shell reports it


class LostProcessError(HardmineError, RuntimeError):
    """Another process of the same training has ended without saying why."""


class NumericalError(HardmineError, ArithmeticError):
    """Descriptors or losses that are not finite, or descriptors that have collapsed to one point."""
