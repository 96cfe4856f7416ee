"""kill -9 at random moments of a training, then the same command again: the same weights, rounds and log.

HARDMINE_KILLS sets how often (default 2)."""

import json
import os
import random
import signal
import subprocess
import sys
import time

from hardmine.store.rounds import MiningStore

KILLS = int(os.environ.get("HARDMINE_KILLS", "2"))


def command(stores, run):
    settings = {
        "data.store": stores["train"],
        "data.split": "train",
        "train.pairs": 8,
        "train.steps": 60,
        "train.mine_every": 7,
        "train.lag": 3,
        "train.checkpoint_every": 5,
        "train.log_every": 1,
        "views.per_class": 5,
        "evaluation": f"[{{store='{stores['test']}'}}]",
    }
    pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "hardmine", "train", "adasample", "--run", str(run), "--json", *pairs]


def start(stores, run):
    return subprocess.Popen(
        command(stores, run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def outcome(run):
    """Everything but the times."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    rounds = MiningStore(run / "mining").rounds()
    return (
        (run / "weights.safetensors").read_bytes(),
        (run / "result.json").read_bytes(),
        [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in lines],
        [(r.attrs, r.descriptors().tobytes(), r.entry_row.tobytes(), r.entry_view.tobytes()) for r in rounds],
    )


def test_kill_9_during_training(stores, tmp_path):
    began = time.monotonic()
    straight = start(stores, tmp_path / "straight")
    _, errors = straight.communicate()
    assert straight.returncode == 0, errors.decode()
    whole = time.monotonic() - began
    draw, killed = random.Random(0), 0
    while killed < KILLS:
        child = start(stores, tmp_path / "killed")
        while not (tmp_path / "killed" / "run.json").exists() and child.poll() is None:
            time.sleep(0.01)
        try:
            child.wait(draw.uniform(0.1, 0.6) * whole)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            killed += 1
        child.communicate()
        if child.returncode == 0:  # it got to the end between two kills: begin anew
            assert outcome(tmp_path / "killed") == outcome(tmp_path / "straight")
            (tmp_path / "killed").rename(tmp_path / f"whole{killed}")
    last = start(stores, tmp_path / "killed")
    _, errors = last.communicate()
    assert last.returncode == 0, errors.decode()
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "straight")
