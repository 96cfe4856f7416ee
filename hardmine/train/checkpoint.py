"""Checkpoints: safetensors for tensors, JSON for everything else, one folder each, there as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from hardmine.errors import StoreError
from hardmine.store.files import disk_errors
from hardmine.store.tensor_files import tensor_bytes


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk. step: optimiser steps done. state: the JSON part."""

    path: Path
    step: int
    state: dict[str, Any]

    def tensors(self, part: str) -> dict[str, torch.Tensor]:
        """The tensors saved as `part` ('weights', 'optimizer')."""
        file = self.path / f"{part}.safetensors"
        try:
            return load_file(str(file))
        except (OSError, SafetensorError) as error:
            raise StoreError(f"{file} cannot be read ({error}): delete {self.path} to go back one") from error


def save(folder: Path, step: int, state: dict[str, Any], **parts: dict[str, torch.Tensor]) -> Checkpoint:
    """Write `folder/000123`, by way of a temporary folder and a rename: it is there as a whole or not at all.
    Raises DiskError."""
    final, temporary = folder / f"{step:06d}", folder / f".{step:06d}.partial"
    with disk_errors(f"the checkpoint {final}"):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            for part, tensors in parts.items():
                (temporary / f"{part}.safetensors").write_bytes(tensor_bytes(tensors))
            (temporary / "state.json").write_text(json.dumps({"step": step, **state}, indent=1, sort_keys=True))
            _sync(temporary)
            if final.exists():  # the same step once more, after a resume: the bytes are the same
                shutil.rmtree(final)
            os.replace(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return Checkpoint(final, step, state)


def last(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in `folder`, or None."""
    found = sorted(p for p in folder.glob("[0-9]*") if p.is_dir()) if folder.is_dir() else []
    if not found:
        return None
    try:
        state = json.loads((found[-1] / "state.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise StoreError(f"{found[-1]} is damaged ({error}): delete it to go back one") from error
    return Checkpoint(found[-1], state["step"], state)


def keep_last(folder: Path, count: int) -> None:
    """Delete all but the newest `count` checkpoints."""
    for old in sorted(p for p in folder.glob("[0-9]*") if p.is_dir())[:-count]:
        shutil.rmtree(old)


def _sync(folder: Path) -> None:
    for file in folder.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
