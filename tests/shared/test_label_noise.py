"""Planted label noise in real photographs: what the audit finds of it, with a network trained on the noisy labels.

HARDMINE_NOISE_SEEDS names the swaps to try (default 1). The constants of the score were chosen on another swap."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hardmine.mining.audit import AuditOptions, audit
from hardmine.mining.mine import mine
from hardmine.pipeline.ingest import ingest
from hardmine.store.patches import PatchStore
from hardmine.train.loop import train
from hardmine.train.networks import build
from hardmine.train.recipe import load_recipe
from hardmine.train.runs import load

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif("HARDMINE_SHARED" not in os.environ, reason="HARDMINE_SHARED names no folder with real data"),
]

SHARE = 0.05
SEEDS = [int(seed) for seed in os.environ.get("HARDMINE_NOISE_SEEDS", "1").split(",")]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """The folder of the Grocery Store data set."""
    root = tmp_path_factory.mktemp("grocery")
    with zipfile.ZipFile(Path(os.environ["HARDMINE_SHARED"]) / "data" / "grocery.zip") as archive:
        archive.extractall(root)
    return next(root.rglob("train.txt")).parent


def swapped(labels, seed):
    """Disjoint pairs of items of two classes exchange their labels, until 5 % of all items have another label than
    before: the labels, and the items whose label is wrong."""
    order = np.random.default_rng(seed).permutation(len(labels)).tolist()
    noisy, wrong, count = labels.copy(), [], round(SHARE * len(labels))
    while len(wrong) < count:
        first = order.pop()
        second = order.pop(next(i for i in range(len(order) - 1, -1, -1) if labels[order[i]] != labels[first]))
        noisy[first], noisy[second] = labels[second], labels[first]
        wrong += [first, second]
    return noisy, np.array(wrong)


def noisy_store(photographs, folder, seed):
    """A patch store of the training photographs under noisy labels, and the rows whose label is wrong."""
    lines = [line.split(",") for line in (photographs / "train.txt").read_text().splitlines()]
    paths, labels = [line[0].strip() for line in lines], np.array([int(line[1]) for line in lines])
    noisy, wrong = swapped(labels, seed)
    table = "".join(f"{path},{label}\n" for path, label in zip(paths, noisy))
    (folder / "noisy.csv").write_text("path,label\n" + table)
    pictures = {"size": "square:64", "colour": "grey"}
    ingest("table", folder / "noisy.csv", folder / "store", options={"root": str(photographs)}, pictures=pictures)
    store = PatchStore.open(folder / "store")
    planted = tuple(paths[i].encode() for i in wrong)
    rows = np.flatnonzero([bytes(source).endswith(planted) for source in store.source])
    assert len(rows) == len(wrong)
    return store, rows


@pytest.mark.parametrize("seed", SEEDS)
def test_planted_swaps_are_among_the_likeliest_wrong_labels(seed, photographs, tmp_path):
    store, planted = noisy_store(photographs, tmp_path, seed)
    options = [f"data.store={store.path}", "train.pairs=64", "train.steps=300", f"train.seed={seed}"]
    run = train(load_recipe("hardnet", [*options, "train.checkpoint_every=300"]), tmp_path / "run").path
    found = {}
    for name, network in (("trained", load(run)), ("untrained", build("l2net", {}, seed).eval())):
        source = mine(store, tmp_path / name, network, derive=("knn",)).round
        suspects = audit(store, source, AuditOptions(suspects=len(planted))).suspects
        found[name] = np.isin(suspects, planted)
    chance = len(planted) / len(store)
    figures = {name: f"{hits.sum()} of {len(hits)}, {hits[:20].sum()} of the first 20" for name, hits in found.items()}
    print(f"\nswap {seed}: {figures}; random picks: {chance * len(planted):.1f}")
    assert found["trained"].mean() > 5 * chance
    assert found["trained"].mean() > found["untrained"].mean()
