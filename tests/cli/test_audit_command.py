"""The command `audit`."""

import json

import numpy as np
import pytest
from mining_world import Tiny, make_store
from typer.testing import CliRunner

from hardmine.cli import app
from hardmine.mining.mine import mine


@pytest.fixture
def world(tmp_path):
    store = make_store(tmp_path / "store", constant=(4, 9))
    mine(store, tmp_path / "mining", Tiny(), derive=("knn",))
    return [str(tmp_path / "store"), str(tmp_path / "mining")]


def test_audit_prints_a_table_or_one_json_object_and_writes_the_list(world, tmp_path):
    plain = CliRunner().invoke(app, ["audit", *world])
    assert plain.exit_code == 0, plain.output
    assert "pairs under two labels" in plain.output
    found = CliRunner().invoke(app, ["audit", *world, "--out", str(tmp_path / "out"), "--set", "suspects=1", "--json"])
    facts = json.loads(found.stdout)
    assert facts["pairs under two labels"] == 1
    assert facts["suspected labels"] == 1
    listed = json.loads((tmp_path / "out" / "exclude.json").read_text())["rows"]
    assert {4, 9} <= {each["row"] for each in listed}
    assert np.all([(tmp_path / "out" / name).is_file() for name in ("audit.json", "conflicts.png", "suspects.png")])
