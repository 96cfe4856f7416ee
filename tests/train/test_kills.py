"""kill -9 at random moments of ingest, mine and train, then the same command again: the same bytes as undisturbed.

HARDMINE_KILLS sets how often each is killed (default 2)."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from hardmine.store.rounds import MiningStore

KILLS = int(os.environ.get("HARDMINE_KILLS", "2"))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def photographs(folder):
    if folder.exists():
        return folder
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(8):
        texture = cv2.resize(rng.random((60, 60)).astype(np.float32), (640, 640), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{i}.png"), (texture.clip(0, 1) * 255).astype(np.uint8))
    return folder


def ingest(stores, root, out):
    return ["ingest", "photos", photographs(root / "photos"), out, "--set", "patches_per_class=12"]


def mine(stores, root, out):
    return ["mine", stores["train"], out, "--network", "l2net", "--split", "train", "--views", "30"]


def train(stores, root, out):
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
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return ["train", "adasample", "--run", out, *overrides]


def files(folder, skip=()):
    """Every file's bytes, but locks and what says when and how long."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not p.name.startswith(".lock") and p.name not in skip
    }


def ingest_outcome(out):
    return files(out)


def mine_outcome(out):
    return files(out, skip=("log.jsonl",))


def train_outcome(out):
    """Weights, result, plans' consequences step by step (the log without its times), and every round left."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    rounds = MiningStore(out / "mining").rounds()
    return (
        (out / "weights.safetensors").read_bytes(),
        (out / "result.json").read_bytes(),
        [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in lines],
        [(r.number, files(r.folder)) for r in rounds],
    )


STAGES = {"ingest": (ingest, ingest_outcome), "mine": (mine, mine_outcome), "train": (train, train_outcome)}


def start(words):
    command = [sys.executable, "-m", "hardmine", *map(str, words), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)


def finish(words):
    child = start(words)
    _, errors = child.communicate()
    assert child.returncode == 0, errors.decode()


@pytest.mark.parametrize("stage", STAGES)
def test_kill_9_at_random_moments(stage, stores, tmp_path):
    command, outcome = STAGES[stage]
    command(stores, tmp_path, tmp_path / "warm")  # writes the photographs
    began = time.monotonic()
    finish(command(stores, tmp_path, tmp_path / "straight"))
    whole = time.monotonic() - began
    expected = outcome(tmp_path / "straight")
    draw, killed, target = random.Random(0), 0, tmp_path / "killed"
    while killed < KILLS:
        child = start(command(stores, tmp_path, target))
        while not target.exists() and child.poll() is None:
            time.sleep(0.005)
        try:
            child.wait(draw.uniform(0.02, 0.6) * whole)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            killed += 1
        child.communicate()
        if child.returncode == 0:  # it reached the end between two kills: begin anew
            assert outcome(target) == expected
            target = tmp_path / f"killed{killed}"
    finish(command(stores, tmp_path, target))
    assert outcome(target) == expected
