"""A disk that fills up during mine or train: one message that says what could not be written, nothing half-written."""

import resource
import subprocess
import sys

import pytest

from hardmine.store.rounds import MiningStore
from hardmine.train import checkpoint

SETTINGS = ["train.pairs=8", "train.steps=4", "train.checkpoint_every=2", "data.split=train"]


def run(words, largest=None):
    """A command under a limit on the size of files, which the system reports as a full disk does."""

    def limit():
        if largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    command = [sys.executable, "-m", "hardmine", *map(str, words), "--json"]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False)


def test_mine(stores, tmp_path):
    words = ["mine", stores["train"], tmp_path / "mining", "--network", "l2net", "--split", "train"]
    full = run(words, largest=100_000)
    assert full.returncode == 1
    assert full.stderr.strip().startswith("hardmine: cannot write mining store")
    assert "Traceback" not in full.stderr
    assert MiningStore(tmp_path / "mining").rounds() == []
    assert run(words).returncode == 0
    assert len(MiningStore(tmp_path / "mining").rounds()) == 1


@pytest.mark.parametrize("sampler", ["hardnet", "adasample"])
def test_train(sampler, stores, tmp_path):
    overrides = [part for setting in [*SETTINGS, f"data.store={stores['train']}"] for part in ("--set", setting)]
    words = ["train", sampler, "--run", tmp_path / "run", *overrides]
    full = run(words, largest=1_000_000)
    assert full.returncode == 1
    assert "cannot write the checkpoint" in full.stderr
    assert "Traceback" not in full.stderr
    assert checkpoint.last(tmp_path / "run" / "checkpoints") is None
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    assert run(words).returncode == 0
