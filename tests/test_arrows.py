"""The layers of the house: imports point down only."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "hardmine"
LAYERS = ["errors", "registry", "options", "metrics", "store", "pipeline", "mining", "train", "protocols"]
LAYERS += ["reproduce", "demo", "printing", "cli", "__main__"]
FORBIDDEN = {("metrics", "store"), ("store", "metrics")}  # neighbours that stand side by side


def imports(file):
    """The hardmine layers that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "hardmine" and len(parts) > 1:
                yield parts[1]


def layer(file):
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_down(file):
    if file == PACKAGE / "__init__.py":
        return
    own = layer(file)
    assert own in LAYERS, f"{own} has no place in the house"
    for other in imports(file):
        assert LAYERS.index(other) <= LAYERS.index(own), f"{file} imports {other}, which stands above it"
        assert (own, other) not in FORBIDDEN, f"{file} imports {other}, which stands beside it"


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_no_file_is_longer_than_400_lines(file):
    assert len(file.read_text().splitlines()) <= 400


def test_the_store_knows_no_networks_and_no_datasets():
    for file in (PACKAGE / "store").rglob("*.py"):
        text = file.read_text().lower()
        for word in ("phototour", "hpatches", "torch.nn", "nn.module"):
            assert word not in text, f"{file} speaks of {word}"
