"""Every row of the sets on images trains and is measured: their small scale on tiny images, a few steps."""

import json
import math
from pathlib import Path

import pytest

from hardmine.reproduce import reproduce
from hardmine.reproduce.set_file import load_set

SMALL = """
base = "{name}"
title = "tiny"
source = "the tests"

[scales.small]
about = "tiny"
stores = {{ training = {{ store = "pictures", split = "train" }}, unseen = {{ store = "pictures", split = "val" }} }}

[scales.small.set]
network = {{ name = "convnet", side = 12, blocks = 2, width = 4, dim = 8 }}
sampler = {{ name = "class-balanced", classes = 4, per_class = 3 }}
"train.steps" = 5
"train.checkpoint_every" = 5
"""
ASKED = {
    "pads-table1": "",
    "pads-table4": "",
    "pads-table5": 'policy = { split = "val", every = 2 }',
    "gor-images": "",
    "dsdml-table2": "",
}


@pytest.mark.parametrize("name", sorted(ASKED))
def test_every_row_runs(pictures, tmp_path, name):
    (tmp_path / "tiny.toml").write_text(SMALL.format(name=name) + ASKED[name])
    found = reproduce(str(tmp_path / "tiny.toml"), pictures, tmp_path / "out", device="cpu")
    rows = [row.name for row in load_set(name).rows_at("small")]
    assert found.ran == [f"{row} on pictures, seed 0" for row in rows]
    assert found.table.gaps == []
    assert all(math.isfinite(v) for figure in found.table.figures.values() for v in figure.metrics.values())
    runs = {
        json.dumps(json.loads((Path(f.run) / "run.json").read_text())["recipe"]) for f in found.table.figures.values()
    }
    assert len(runs) == len(rows)  # no two rows are the same training
