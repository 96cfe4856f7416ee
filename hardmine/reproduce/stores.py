"""The patch stores that the shipped sets ask for: where they are, and the command that writes one that is missing."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from hardmine.errors import MissingError
from hardmine.store.patches import PatchStore


def store_path(folder: Path, name: str) -> Path:
    """Where the patch store called `name` is in the folder of stores."""
    return folder / f"{name}.store"


def open_store(folder: Path, name: str) -> PatchStore:
    """The patch store called `name` in `folder`. Raises MissingError with the command that writes it."""
    path = store_path(folder, name)
    if not path.exists():
        raise MissingError(f"no patch store at {path}. Write it with: {ingest_command(name).format(store=path)}")
    return PatchStore.open(path)


def ingest_command(name: str) -> str:
    """The command that writes the store called `name`, with {store} for its path."""
    return known_stores().get(name, "hardmine ingest KIND SRC {store}")


@cache
def known_stores() -> dict[str, str]:
    """Store name to the command that writes it."""
    return tomllib.loads(Path(__file__).with_name("stores.toml").read_text(encoding="utf-8"))
