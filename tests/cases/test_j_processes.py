"""Distributed, resume, processes: public bug reports as tests. The numbers are those of the bug-case log."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from polygon_world import polygon_store
from ranks_world import LIMIT, image_recipe, together

from hardmine.errors import Stopped
from hardmine.mining.samplers import Sampler
from hardmine.train.loop import train
from hardmine.train.runs import Run, load


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return polygon_store(tmp_path_factory.mktemp("images"), classes=8, each=8, sides=28)


def toml(store, file):
    """A recipe of two steps as a file: a small network, random classes."""
    file.write_text(
        f"data = {{store = '{store}', split = 'train', exclude_overlap = 0.0}}\n"
        "network = {name = 'convnet', side = 20, channels = 3, width = 8, blocks = 2, dim = 16}\n"
        "sampler = {name = 'class-balanced', classes = 4, per_class = 3}\n"
        "miner = {name = 'semi-hard'}\n"
        "loss = {name = 'triplet-margin'}\n"
        "optimizer = {name = 'adam', lr = 1e-3}\n"
        "train = {steps = 12, checkpoint_every = 2, log_every = 1}\n"
    )
    return file


def start(recipe, run, *settings, launcher=("-m", "hardmine"), **environment):
    words = [*launcher, "train", str(recipe), "--run", str(run), *(w for s in settings for w in ("--set", s))]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths} | environment
    return subprocess.Popen(
        [sys.executable, *words], env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(*children):
    try:
        for child in children:
            _, errors = child.communicate(timeout=LIMIT)
            assert child.returncode == 0, errors
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()


def test_107_a_run_that_was_killed_continues_at_its_step_with_its_batches(store, tmp_path, monkeypatch):
    plans, plain = [], Sampler.__iter__

    def recorded(self):
        for plan in plain(self):
            plans.append((plan.step, plan.rows.tolist()))
            yield plan

    monkeypatch.setattr(Sampler, "__iter__", recorded)
    wanted = image_recipe(store, sampler={"name": "class-balanced", "classes": 4, "per_class": 3}, policy=None)
    train(wanted, tmp_path / "whole")
    whole, plans[:] = list(plans), []

    def kill(step, steps, figures):
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="stopped by SIGTERM after step 5 of 8") as stopped:
        train(wanted, tmp_path / "run", progress=kill)
    assert stopped.value.exit_code == 143
    plans.clear()
    assert train(wanted, tmp_path / "run").trained == 3
    assert plans == [plan for plan in whole if plan[0] >= 5]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    a, b = (load(tmp_path / name).state_dict() for name in ("whole", "run"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_108_two_runs_at_once_and_one_after_a_kill_do_not_meet(store, tmp_path):
    recipe, shared = toml(store, tmp_path / "recipe.toml"), Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    first = start(recipe, tmp_path / "a", "data.loader_workers=1")
    until = time.monotonic() + LIMIT
    while not list((tmp_path / "a" / "checkpoints").glob("[0-9]*")) and first.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    first.kill()
    first.communicate(timeout=LIMIT)  # its loader worker has to end, too, which holds the other end of the pipe
    children = [start(recipe, tmp_path / name, "data.loader_workers=1") for name in ("a", "b")]
    ended(*children)
    a, b = (Run.open(tmp_path / name) for name in ("a", "b"))
    assert a.weights.read_bytes() == b.weights.read_bytes()
    if shared.is_dir():
        assert not [p for p in set(shared.iterdir()) - before if "hardmine" in p.name]


def test_110_torchrun_with_one_process_works(store, tmp_path):
    recipe = toml(store, tmp_path / "recipe.toml")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "hardmine", "--")
    ended(start(recipe, tmp_path / "torchrun", launcher=torchrun), start(recipe, tmp_path / "alone"))
    under, alone = (Run.open(tmp_path / name) for name in ("torchrun", "alone"))
    assert under.result["steps"] == 12
    assert under.weights.read_bytes() == alone.weights.read_bytes()


def scored(ranks, store, folder):
    """What validation says in a run whose weights stay as they are."""
    torch.set_num_threads(1)
    from hardmine.protocols.evaluate import score

    validation = {"store": str(store), "split": "val", "protocol": "retrieval", "every": 2, "metric": None}
    wanted = image_recipe(
        store,
        validation=validation,
        policy=None,
        sampler={"name": "class-balanced", "classes": 4, "per_class": 3},
        loss={"name": "triplet-margin"},
        optimizer={"name": "sgd", "lr": 1e-20},
        train__steps=2,
        train__mine_every=10,
    )
    run = Run.open(train(wanted, folder / str(ranks.size), score, ranks=ranks).path)
    return [line for line in run.log() if any(key.startswith("validation/") for key in line)]


def test_121_a_validation_has_the_same_digits_with_1_2_and_3_processes(store, tmp_path):
    found = [together(scored, size, tmp_path / f"calls{size}", store, tmp_path)[0] for size in (2, 3)]
    (two,), (three,) = found
    figures = [{k: v for k, v in line.items() if k.startswith("validation/")} for line in (two, three)]
    assert len(figures[0]) > 1
    assert figures[0] == figures[1]
    (alone,) = together(scored, 1, tmp_path / "calls1", store, tmp_path)[0]
    assert {k: v for k, v in alone.items() if k.startswith("validation/")} == figures[0]
