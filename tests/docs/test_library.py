"""`docs/library.md`: every public name and every example is there."""

from pathlib import Path

import hardmine

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/library.md").read_text("utf-8")


def test_every_public_name_is_there():
    assert [name for name in hardmine.__all__ if f"`{name}`" not in TEXT and f"`{name}(" not in TEXT] == []


def test_every_example_is_there_and_every_named_one_exists():
    files = {file.name for file in (ROOT / "examples").glob("*.py")}
    assert {name for name in files if f"`{name}`" in TEXT} == files - {"made_up.py"}
    assert "examples/made_up.py" in TEXT
