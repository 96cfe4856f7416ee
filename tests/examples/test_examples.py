"""Every example runs, does what it says, and fits on a screen."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from hardmine import losses, readers, samplers
from hardmine.train.runs import Run

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def example():
    """Gives the module of an example by its name. What they register is forgotten after these tests: others walk the
    registries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        for registry in (readers, samplers, losses):
            registry.names()  # load what is ours
            patch.setattr(registry, "_known", dict(registry._known))
        yield importlib.import_module


def learns(values, steps=60):
    assert len(values) == steps
    assert np.mean(values[-10:]) < 0.9 * np.mean(values[:10])


def test_a_plain_loop_with_a_mining_store(example, tmp_path):
    learns(example("plain_loop").main(tmp_path))


def test_inside_lightning(example, tmp_path):
    pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
    learns(example("lightning_loop").main(tmp_path))


def test_with_pytorch_metric_learning(example, tmp_path):
    learns(example("metric_learning").main(tmp_path))


def test_metrics_on_ones_own_arrays(example):
    found = example("metrics").main()
    assert set(found) == {"r@1", "r@8", "map@r", "rank-1", "map", "fpr95"}
    assert 0 < found["map@r"] < found["r@1"] < found["r@8"] <= 1
    assert 0 < found["fpr95"] < 1


def test_parts_of_ones_own(example, tmp_path):
    result = example("own_parts").main(tmp_path)
    assert result["steps"] == 5
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert any("loss" in line for line in lines)
    recipe = Run.open(tmp_path / "run").recipe
    assert (recipe.sampler.name, recipe.loss.name) == ("neighbours-in-name", "cosine-hinge")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_examples_are_short(file):
    """30 lines of code below the imports; `made_up` is what they work on, and no example."""
    own = [line for line in file.read_text().splitlines()[1:] if line and not line.startswith(("import ", "from "))]
    assert len(own) <= (40 if file.name == "made_up.py" else 30)
