"""The further columns of a table: which type they have, and names under which a store can keep them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

_TAKEN = ("label", "raw_label", "source", "used", "split", "box", "frame")
_NUMBERED = ("image", "camera", "role")  # mean something to a store where they hold whole numbers
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_REAL = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|nan|", re.IGNORECASE)
_EXACT = 2**24  # whole numbers beyond it are not all float32


def store_columns(
    titles: Sequence[str], columns: Sequence[Sequence[str]]
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The columns of a table (each: N values) as columns of a store (N,), by name, and a count of N for each that got
    another name than its title.

    Names are of letters, digits, '_', '.' and '-', none twice in either case, and none that means something else to a
    store; a number at the end tells apart those that would be the same."""
    result: dict[str, np.ndarray] = {}
    renamed = {}
    taken = set(_TAKEN)
    for number, (title, words) in enumerate(zip(titles, columns, strict=True), 1):
        values = typed(words)
        base = re.sub(r"[^A-Za-z0-9_.-]+", "_", title).strip("_.-") or f"column_{number}"
        name, again = base, 1
        while name.lower() in taken or (name.lower() in _NUMBERED and values.dtype != np.int64):
            again += 1
            name = f"{base}_{again}"
        taken.add(name.lower())
        result[name] = values
        if name != title:
            renamed[f"values of column {title!r}, stored as {name!r}"] = len(values)
    return result, renamed


def typed(values: Sequence[str]) -> np.ndarray:
    """The values (N,) as int64 if all are whole numbers as one writes them; as float32 if all are numbers or empty
    (NaN) and the whole ones keep their value; as bytes ('S', UTF-8) otherwise, so that "007" stays what it is."""
    if all(_WHOLE.fullmatch(value) for value in values):
        return np.array([int(value) for value in values], np.int64)
    if any(values) and all(_REAL.fullmatch(value) for value in values):
        numbers = np.array([float(value or "nan") for value in values])
        if not any(abs(number) > _EXACT for number, value in zip(numbers, values) if value.lstrip("-").isdigit()):
            with np.errstate(over="ignore"):
                return numbers.astype(np.float32)
    return np.array([value.encode("utf-8", "surrogateescape") for value in values])
