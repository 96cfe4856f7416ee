"""Processes that share a training, started as torchrun starts them, each with a time-out."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import torch

from hardmine.options import check
from hardmine.train.ranks import joined
from hardmine.train.recipe import Recipe

LIMIT = 240  # seconds; a group that hangs is killed then, and the test fails


def image_recipe(store, **changes):
    """A small run on single images: batch norm, a loss that learns, PADS' policy, rounds; 8 steps."""
    tree = {
        "data": {"store": str(store), "split": "train", "exclude_overlap": 0.0},
        "network": {"name": "convnet", "side": 20, "resize": 22, "channels": 3, "width": 8, "blocks": 2, "dim": 16},
        "augment": {"crop": "random", "shift": 1},
        "sampler": {"name": "pads-classes", "classes": 4, "per_class": 3, "group": 2, "candidates": 4},
        "miner": {"name": "pads"},
        "loss": {"name": "margin", "beta_lr": 0.1},
        "policy": {"every": 3, "split": "val", "history": 4, "averages": (2,)},
        "optimizer": {"name": "adam", "lr": 1e-3, "weight_decay": 4e-4},
        "schedule": {"name": "constant"},
        "train": {"steps": 8, "mine_every": 4, "checkpoint_every": 3, "log_every": 1, "lag": 3},
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if value is None:
            tree.pop(section)
        elif key:
            tree.setdefault(section, {})[key] = value
        else:
            tree[section] = value
    return check(Recipe, tree, "the test's recipe")


def environment(rank, size, port):
    """What torchrun tells process `rank`, and as many threads as every other process has."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    paths = os.pathsep.join(str(p) for p in (Path(__file__).parents[1], Path(__file__).parent, *sys.path) if str(p))
    return os.environ | {k: str(v) for k, v in told.items()} | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(commands):
    """One process for each command, all of one group."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=environment(rank, len(commands), port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, command in enumerate(commands)
    ]


def finish(children):
    """(exit code, stdout, stderr) of each; none outlives the limit."""
    try:
        return [(child.returncode, *said) for child in children for said in [child.communicate(timeout=LIMIT)]]
    finally:
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)


def together(function, size, folder, *arguments):
    """[function(ranks, *arguments) of each of `size` processes]. function: of an importable module."""
    folder.mkdir(parents=True, exist_ok=True)
    call = folder / "call"
    call.write_bytes(pickle.dumps((function.__module__, function.__name__, arguments)))
    ended = finish(start([[__file__, call, folder / f"{rank}.pt"] for rank in range(size)]))
    for code, _, errors in ended:
        assert code == 0, errors
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def main(call, out):
    module, name, arguments = pickle.loads(Path(call).read_bytes())
    function = getattr(__import__(module), name)
    with joined("cpu") as ranks:
        torch.save(function(ranks, *arguments), out)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        raise
