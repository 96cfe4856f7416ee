"""kill -9 at random moments of ingest, mine and train, then the same command again: the same bytes as undisturbed.
Trainings also get SIGTERM, alone and under torchrun, where a process or torchrun itself is killed.

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
from hardmine.train import checkpoint

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


TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "hardmine", "--"]
LIMIT = 300  # seconds that nothing here may last


def start(words, launcher=("-m", "hardmine"), group=False):
    command = [sys.executable, *launcher, *map(str, words), "--json"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env=ENVIRONMENT, start_new_session=group)


def finish(words, launcher=("-m", "hardmine")):
    child = start(words, launcher)
    _, errors = child.communicate(timeout=LIMIT)
    assert child.returncode == 0, errors.decode()


def wait_for(condition, what):
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until, f"waited too long for {what}"
        time.sleep(0.01)


def logged(run, count):
    """Whether a run has logged so many lines."""
    return (run / "log.jsonl").is_file() and (run / "log.jsonl").read_text().count("\n") >= count


def light(words):
    """A training with a network that is quick to train."""
    return [*words, "--set", "network={name='tfeat', unit_norm=true}"]


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


def test_sigterm_to_a_whole_group_writes_a_checkpoint_and_ends(stores, tmp_path):
    """As a scheduler sends it: to the loader's workers, too."""
    words = light(train(stores, tmp_path, tmp_path / "stopped"))
    child = start([*words, "--set", "data.loader_workers=1"], group=True)
    wait_for(lambda: logged(tmp_path / "stopped", 8) or child.poll() is not None, "the first steps")
    os.killpg(child.pid, signal.SIGTERM)
    _, errors = child.communicate(timeout=LIMIT)
    assert child.returncode == 143, errors.decode()
    assert b"stopped by SIGTERM after step" in errors
    newest = checkpoint.last(tmp_path / "stopped" / "checkpoints")
    assert f"after step {newest.step} of 60" in errors.decode()
    finish(words)
    finish(light(train(stores, tmp_path, tmp_path / "straight")))
    assert train_outcome(tmp_path / "stopped") == train_outcome(tmp_path / "straight")


def workers_of(child):
    """The processes that torchrun has started."""
    try:
        with open(f"/proc/{child.pid}/task/{child.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started_under_torchrun(stores, root, run):
    """A training that has come about as far as the one before it, and its processes."""
    seen = len((run / "log.jsonl").read_text().splitlines()) if (run / "log.jsonl").is_file() else 0
    child = start(light(train(stores, root, run)), TORCHRUN)
    wait_for(lambda: child.poll() is not None or logged(run, max(1, seen - 8)), "the first steps")
    return child, workers_of(child)


def wait_until_gone(pids):
    wait_for(lambda: not any(alive(pid) for pid in pids), "the processes of a training that was killed")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes that torchrun has started in /proc")
def test_torchrun_is_killed_at_random_moments(stores, tmp_path):
    """SIGTERM to torchrun, which hands it on; kill -9 to one of the processes; kill -9 to torchrun, whose processes are
    then to end by themselves: in turn."""
    finish(light(train(stores, tmp_path, tmp_path / "straight")), TORCHRUN)
    expected = train_outcome(tmp_path / "straight")
    draw, killed, target = random.Random(1), 0, tmp_path / "killed"
    while killed < max(KILLS, 3):
        child, pids = started_under_torchrun(stores, tmp_path, target)
        try:
            child.wait(draw.uniform(0.02, 1.0))
        except subprocess.TimeoutExpired:
            if killed % 3 == 0 or not pids:
                child.send_signal(signal.SIGTERM)
            else:
                os.kill(draw.choice(pids) if killed % 3 == 1 else child.pid, signal.SIGKILL)
            killed += 1
        child.communicate(timeout=LIMIT)
        wait_until_gone(pids)
        if child.returncode == 0:
            assert train_outcome(target) == expected
            target = tmp_path / f"killed{killed}"
    finish(light(train(stores, tmp_path, target)), TORCHRUN)
    assert train_outcome(target) == expected
