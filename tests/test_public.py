import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import hardmine


@pytest.mark.parametrize("name", hardmine.__all__)
def test_every_public_name_can_be_imported_and_is_no_module(name):
    importlib.import_module("hardmine.cli")
    importlib.import_module("hardmine.protocols.evaluate")
    thing = getattr(hardmine, name)
    assert not isinstance(thing, ModuleType)
    assert thing.__doc__


def test_the_list_of_public_names_is_whole():
    assert hardmine.__all__ == sorted(hardmine._HOME)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hardmine.nothing  # noqa: B018


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, hardmine; print([m for m in ('torch', 'numpy', 'zarr') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
