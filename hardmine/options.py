"""Options that cannot be misspelt: closed pydantic models, and one way to turn their complaints into our errors."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from hardmine.errors import InputError, UnknownNameError


class Options(BaseModel):
    """Base of every part's options: frozen, typed, and closed. They are recorded wherever the part's result is."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")  # inf is not written as null


M = TypeVar("M")


def check(model: type[M], values: Mapping[str, Any], where: str) -> M:
    """Validate `values` as `model`, a pydantic model. The first problem becomes one error that names `where` and the
    key: UnknownNameError (with the nearest name) for a key that does not exist, InputError for an unfit value."""
    try:
        return cast(Any, model).model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise UnknownNameError(f"key in {where}:", key, _keys_at(model, first["loc"][:-1])) from error
        given = f" (given: {first['input']!r})" if key and first["type"] != "missing" else ""
        said = first["msg"].removeprefix("Value error, ")  # of our own validators
        raise InputError(f"{where}: {key + ': ' if key else ''}{said}{given}") from error


def apply_override(tree: dict[str, Any], override: str, option: str = "--set") -> None:
    """Set `a.b=value` in a tree of dicts. Raises InputError, which names the command-line `option`, where the override
    is not of that form."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{option} {override}: expected {'section.' if option == '--set' else ''}key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = key.strip().split(".")
    for name in parents:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise InputError(f"{option} {override}: {name!r} is not a section")
    tree[last] = value


def _keys_at(model: Any, path: tuple[int | str, ...]) -> list[str]:
    """The full names of the keys that the model knows at `path`."""
    for part in path:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            candidates = [annotation, *getattr(annotation, "__args__", ())]
            model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return [".".join([*map(str, path), name]) for name in model.model_fields]
