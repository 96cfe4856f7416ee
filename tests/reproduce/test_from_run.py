"""Rows that take the policy or the last distribution of another row's run, on tiny images."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from hardmine.errors import InputError, NumericalError
from hardmine.mining.pads.files import load_distribution
from hardmine.reproduce import reproduce
from hardmine.reproduce import run as engine
from hardmine.reproduce.set_file import load_set
from hardmine.train.loop import train as real_train

SET = """
title = "Tiny transfers"
source = "the tests"
measures = { r1 = { protocol = "retrieval", metric = "r@1", options = { metrics = ["r@k"], k = [1] } } }
columns = [{ train = "seen", test = "unseen" }]

[[rows]]
name = "pads"
title = "PADS"
recipe = "embedding-small"
set = { miner = { name = "pads" }, policy = { split = "val", every = 2, history = 2, averages = [2] } }

[[rows]]
name = "policy"
title = "its policy"
recipe = "embedding-small"
from_run = { row = "pads", bind = { "policy.policy" = "policy" } }

[rows.set]
miner = { name = "pads" }
policy = { split = "val", every = 2, history = 2, averages = [2], learn = false }

[[rows]]
name = "other"
title = "its distribution, other start"
recipe = "embedding-small"
set = { miner = { name = "pads" } }
from_run = { row = "pads", bind = { "miner.saved" = "distribution" }, shift_seed = 1000 }
baseline = "pads"

[scales.small]
about = "tiny"
stores = { seen = { store = "pictures", split = "train" }, unseen = { store = "pictures", split = "val" } }

[scales.small.set]
network = { name = "convnet", side = 12, blocks = 2, width = 4, dim = 8 }
sampler = { name = "class-balanced", classes = 4, per_class = 3 }
"train.steps" = 6
"train.lag" = 2
"train.checkpoint_every" = 3
"""


@pytest.fixture
def transfers(written):
    """transfers(old, new, ...): the set of this file, see `written`."""
    return partial(written, SET)


def recipes(found):
    """Row to (the recipe of its run, the run)."""
    runs = {f.row: Path(f.run) for f in found.table.figures.values()}
    return {row: (json.loads((run / "run.json").read_text())["recipe"], run) for row, run in runs.items()}


def test_a_row_takes_files_of_the_run_of_another(pictures, transfers, tmp_path):
    said = []
    found = reproduce(transfers(), pictures, tmp_path / "out", device="cpu", say=said.append)
    assert found.ran == [f"{row} on pictures, seed 0" for row in ("pads", "policy", "other")]
    made = recipes(found)
    pads = made["pads"][1]
    folder = pads.with_name(f"{pads.name}.policy")
    assert made["policy"][0]["policy"]["policy"] == str(folder / "policy.safetensors")
    assert made["other"][0]["miner"]["saved"] == str(folder / "distribution.safetensors")
    assert [made[row][0]["train"]["seed"] for row in ("pads", "policy", "other")] == [0, 0, 1000]
    assert (
        load_distribution(folder / "distribution.safetensors").q == load_distribution(folder / "policy.safetensors").q
    )
    assert sum("takes from pads" in line for line in said) == 2


def test_the_source_is_trained_once_and_on_demand(pictures, transfers, tmp_path, monkeypatch):
    steps = []

    def counted(*args, **options):
        steps.append(real_train(*args, **options).trained)
        return real_train(*args, **options)

    monkeypatch.setattr(engine, "train", counted)
    mine, part = transfers(), {"device": "cpu", "rows": ["other"]}
    alone = reproduce(mine, pictures, tmp_path / "out", **part)
    assert alone.ran == ["other on pictures, seed 0"]
    assert steps == [6, 6]
    assert {cell.row for cell in alone.table.gaps} == {"pads", "policy"}
    rest = reproduce(mine, pictures, tmp_path / "out", device="cpu")
    assert steps == [6, 6, 0, 0, 6]  # pads, and for the row policy pads again
    assert rest.table.gaps == []
    whole = reproduce(mine, pictures, tmp_path / "whole", device="cpu")
    assert [f.metrics for f in whole.table.figures.values()] == [f.metrics for f in rest.table.figures.values()]


def test_figures_depend_on_the_source_and_not_on_where_it_lies(pictures, transfers, tmp_path):
    reproduce(transfers(), pictures, tmp_path / "out", device="cpu")
    dry = {"device": "cpu", "dry_run": True}
    shutil.copytree(pictures, tmp_path / "moved")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert reproduce(transfers(), tmp_path / "moved", tmp_path / "elsewhere", **dry).planned == []
    changed = transfers(
        'set = { miner = { name = "pads" }, policy', 'set = { miner = { name = "pads", high = 1.5 }, policy'
    )
    planned = reproduce(changed, pictures, tmp_path / "elsewhere", **dry).planned
    assert planned == [f"{row} on pictures, seed 0" for row in ("pads", "policy", "other")]


def test_a_source_that_fails_fails_what_takes_from_it(pictures, transfers, tmp_path, monkeypatch):
    def diverging(recipe, *args, **options):
        if recipe.policy is not None and recipe.policy.learn:
            raise NumericalError("the loss is nan at step 2")
        return real_train(recipe, *args, **options)

    monkeypatch.setattr(engine, "train", diverging)
    found = reproduce(transfers(), pictures, tmp_path / "out", device="cpu")
    assert found.ran == []
    assert set(found.table.failed.values()) == {"the loss is nan at step 2"}
    assert len(found.table.failed) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('row = "pads", bind = { "policy', 'row = "other", bind = { "policy', "no row before it"),
        ('row = "pads", bind = { "policy', 'row = "padz", bind = { "policy', "no row before it"),
        ('"miner.saved" = "distribution"', '"miner.saved" = "weights"', "'policy' or 'distribution'"),
        ('bind = { "miner.saved" = "distribution" }', "bind = {}", "at least 1 item"),
        ('name = "pads"\ntitle', 'name = "pads"\nscales = ["paper"]\ntitle', "not trained at all of its scales"),
        ("shift_seed = 1000", "shift_seed = -1", "greater than or equal to 0"),
        ("shift_seed = 1000", 'train = "cars"', "binds no store to the role 'cars'"),
        ('set = { miner = { name = "pads" } }', 'contender = "pixels"', "either a recipe or a contender"),
    ],
)  # fmt: skip
def test_a_wrong_from_run_is_one_message(transfers, old, new, message):
    with pytest.raises(InputError, match=message):
        load_set(transfers(old, new))


def test_a_source_without_a_policy_is_said_before_anything_runs(pictures, transfers, tmp_path):
    set_of_pads = (
        'set = { miner = { name = "pads" }, policy = { split = "val", every = 2, history = 2, averages = [2] } }'
    )
    mine = transfers(set_of_pads, 'set = { miner = { name = "pads" } }')
    with pytest.raises(InputError, match=r"row 'policy' takes files of row 'pads', which trains no \[policy\]"):
        reproduce(mine, pictures, tmp_path / "out")
    assert not (tmp_path / "out").exists()
