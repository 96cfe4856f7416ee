"""`docs/datasets.md`, held to the readers: each is there with its options, columns and published numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hardmine.options import apply_override, check
from hardmine.pipeline.pictures import PicturePolicy
from hardmine.pipeline.readers import cars, cub, deepfashion2, inshop, market1501, readers, sop
from hardmine.pipeline.splits import COLUMN, RULES

TEXT = (Path(__file__).parents[2] / "docs/datasets.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### ([\w-]+)\n(.*?)(?=^### |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def shipped() -> list[str]:
    """The readers of the package; other tests register their own."""
    return [name for name in readers.names() if readers.get(name).__module__.startswith("hardmine.")]


def test_every_reader_is_there_with_its_options() -> None:
    assert sorted(SECTIONS) == shipped()
    for name in shipped():
        assert f"| `hardmine ingest {name} " in TEXT
        options = readers.get(name).Options.model_fields
        assert [key for key in options if f"`{key}`" not in SECTIONS[name] and f"{key}=" not in SECTIONS[name]] == []
        assert options or "No options" in SECTIONS[name].replace("\n", " ")


@pytest.mark.parametrize("command", re.findall(r"hardmine ingest [^`\n]+", TEXT)[1:])
def test_the_commands_are_accepted(command: str) -> None:
    kind = command.split()[2]
    options: dict[str, object] = {}
    for setting in re.findall(r"--set '?([^ ']+)", command):
        apply_override(options, setting)
    check(readers.get(kind).Options, options, command)


@pytest.mark.parametrize("module", [cub, cars, sop, inshop, market1501])
def test_published_numbers_are_those_that_are_checked(module: object) -> None:
    official = module.OFFICIAL  # type: ignore[attr-defined]
    (line,) = [
        line for line in TEXT.split("\n") if line.startswith("|") and f"`hardmine ingest {official.name} " in line
    ]
    sizes = [*official.splits.values()] + ([] if module is market1501 else [official.whole])
    for size in sizes:
        assert f"{size.images:,}" in line
        # the gallery's 751st class is that of the distractors
        assert f"{size.classes:,}" in line


def test_deepfashion2s_numbers_are_those_that_are_said() -> None:
    (line,) = [line for line in TEXT.split("\n") if line.startswith("|") and "`hardmine ingest deepfashion2 " in line]
    assert [number for number in deepfashion2.PUBLISHED.values() if f"{number:,}" not in line] == []


def test_picture_options_and_split_rules_are_there() -> None:
    assert [key for key in PicturePolicy.model_fields if f"| `{key}` |" not in TEXT] == []
    assert [rule for rule in (*RULES, COLUMN) if f"`{rule}" not in TEXT] == []
