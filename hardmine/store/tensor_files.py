"""Tensors as safetensors files that say what they are; equal tensors give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from hardmine.errors import InputError, MissingError

_ABOUT = "hardmine"  # the one entry of the metadata: several are written in no fixed order
_FILE = "a safetensors file"


def tensor_bytes(tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any] | None = None) -> bytes:
    """Tensors as the bytes of a safetensors file, with the facts `about` them, JSON, in its metadata."""
    metadata = None if about is None else {_ABOUT: json.dumps(about, sort_keys=True)}
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata)


def about_tensors(file: Path) -> dict[str, Any]:
    """The facts that a file was written with; empty where there are none. Raises MissingError, InputError where it is
    no safetensors file."""
    return _read(file, _FILE, with_tensors=False)[1]


def read_tensors(file: Path, expected: str = _FILE) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by name, and the facts that they were written with. expected: what the file should be, for the message.
    Raises as `about_tensors`."""
    return _read(file, expected, with_tensors=True)


def _read(file: Path, expected: str, *, with_tensors: bool) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    if not file.is_file():
        raise MissingError(f"no file {file}: expected {expected}")
    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys() if with_tensors else []
            about = json.loads((opened.metadata() or {}).get(_ABOUT, "{}"))
            return {name: opened.get_tensor(name) for name in names}, about
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}): expected {expected}") from error
