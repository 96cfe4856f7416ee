"""Where one process of a training fails all end, soon, with one message and an exit code that is not 0."""

from pathlib import Path

import pytest
from ranks_world import finish, start

from hardmine.train.runs import Run

CHILD = Path(__file__).with_name("failing_rank.py")
FAILURES = {
    "store": (1, "shard 3 cannot be read"),
    "mining": (1, "no room for a round"),
    "plans": (1, "have planned different batches for step"),
    "killed": (1, "has ended without a word"),
    "uneven": (2, "7 items cannot be shared evenly among 2 processes"),
}


def words(stores, out, pairs=6, recipe="hardnet"):
    settings = {
        "data.store": stores["train"],
        "data.split": "train",
        "network": "{name='tfeat', unit_norm=true}",
        "train.pairs": pairs,
        "train.steps": 5,
        "train.log_every": 1,
        "train.checkpoint_every": 1,
    }
    return ["train", recipe, "--run", out, *(w for key, value in settings.items() for w in ("--set", f"{key}={value}"))]


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_ends_all_processes_with_one_message(kind, stores, tmp_path):
    code, message = FAILURES[kind]
    recipe = "adasample" if kind == "mining" else "hardnet"
    asked = words(stores, tmp_path / "run", 7 if kind == "uneven" else 6, recipe)
    (first, _, heard), (second, _, also_heard) = finish(start([[CHILD, kind, *asked]] * 2))
    assert first == code, heard + also_heard
    assert second == (-9 if kind == "killed" else code)
    assert (heard + also_heard).count("hardmine: ") == 1
    assert message in heard + also_heard
    assert Run.open(tmp_path / "run").result is None
    if kind != "killed":
        return
    (first, said, heard), (second, silent, _) = finish(start([[CHILD, "none", *asked]] * 2))  # goes on where it was
    assert (first, second) == (0, 0), heard
    assert "steps" in said
    assert silent == ""
    assert Run.open(tmp_path / "run").result["steps"] == 5
