"""`hardmine reproduce` as it is typed."""

import json

import pytest
from command import run


def test_tables_and_what_to_read_with_them(stores, tiny, tmp_path):
    words = ["reproduce", tiny(), "--data", stores, "--out", tmp_path / "out", "--device", "cpu"]
    shown = run(*words, "--rows", "sift", "--seeds", 1)
    assert "A tiny table: small scale" in shown
    assert "PARTIAL: 4 of 6 cells are missing" in shown
    assert "--rows hardnet,adasample" in shown.replace("\n", "")
    found = json.loads(run(*words, "--dry-run", "--seed-list", "0,7", "--json"))
    assert found["planned"][0] == "hardnet on one, seed 0"
    assert found["cells_missing"] == 8
    assert found["rows"]["sift"]["mean"]["count"] == 1
    assert "would run: hardnet on one, seed 7" in run(*words, "--dry-run", "--seed-list", "0,7")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "2", "--seed-list", "1"], "not both"),
        (["--seed-list", "1,x"], "expected numbers"),
        (["--rows", "nothing"], "unknown row"),
    ],
)
def test_mistakes(stores, tiny, words, message):
    assert message in run("reproduce", tiny(), "--data", stores, *words, code=2)


def test_a_failed_run_exits_with_1(stores, tiny, tmp_path):
    mine = tiny('"optimizer.lr" = 0.1', '"optimizer.lr" = 1e30')
    run("reproduce", mine, "--data", stores, "--out", tmp_path / "out", "--rows", "hardnet", "--seeds", 1, code=1)
