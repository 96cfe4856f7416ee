"""Mining against what one would use instead: python benchmarks/mining.py [--large]

Without the option: a pass, a plan, a training step, and exact neighbours of 50,000 items. With it, two rounds of the
size that mining is for, minutes each: 200,000 items exactly, and 1,000,000 through the cells that are its classes.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from measure import Row, fastest, phototour_folder, show

CLASS, DIM, DEGREES, NEIGHBOURS = 10, 128, 40, 50
CHECKED = 2000  # queries compared with the exact lists


def plan(work: Path) -> list[Row]:
    from hardmine.mining.class_distances import StoredDistances
    from hardmine.mining.entries import Entries
    from hardmine.mining.samplers.adasample import AdaSample

    classes, per_class = 100_000, 15
    offsets = np.arange(classes + 1) * per_class
    pairs = per_class * (per_class - 1) // 2
    entries = Entries(np.arange(classes * per_class), np.zeros(classes * per_class, np.int16), offsets)
    sampler = AdaSample(entries, pairs=1024, lag=1 << 20)
    values = np.random.default_rng(0).uniform(0.1, 1.5, classes * pairs).astype(np.float32)
    sampler.distances = StoredDistances(values, np.arange(classes + 1) * pairs, offsets)
    steps = iter(range(10**6))
    (ours,) = fastest(lambda: sampler.plan(next(steps)), runs=50)
    return [("AdaSample plan, 1024 pairs of 100,000 classes", f"{1e3 * ours:.2f} ms against 2 ms", 2e-3 / ours, 1)]


def network_passes(work: Path) -> list[Row]:
    from hardmine.mining.embed import embed_entries
    from hardmine.mining.mine import mine
    from hardmine.pipeline.ingest import ingest
    from hardmine.pipeline.pixels import prepare
    from hardmine.store.patches import PatchStore
    from hardmine.train.networks import build

    phototour_folder(work / "pass.raw", 24)
    ingest("phototour", work / "pass.raw", work / "pass")
    store, network = PatchStore.open(work / "pass"), build("l2net").eval()
    rows, view = np.arange(len(store)), np.zeros(len(store), np.int16)
    memory = torch.from_numpy(store.gather(rows))

    def bare() -> None:
        with torch.inference_mode():
            for start in range(0, len(memory), 1024):
                network(prepare(memory[start : start + 1024], network.side))

    a, b = fastest(lambda: embed_entries(store, rows, view, network), bare, runs=4)
    done = mine(store, work / "pass.mining", network, derive=("pairs",))
    rates = f"{len(store) / a:,.0f} patches/s; bare forward over memory {len(store) / b:,.0f}/s"
    how = f"{rates}; all of `mine` {done.seconds:.1f} s"
    return [("embedding pass", how, b / a, 0.95), *training_steps(store, work)]


def training_steps(store: object, work: Path) -> list[Row]:
    from hardmine.train.loop import train
    from hardmine.train.recipe import load_recipe

    def run(name: str, repeat: int) -> float:
        settings = [f"data.store={work / 'pass'}", "train.steps=12", "train.mine_every=100", "train.log_every=1"]
        folder = work / f"run-{name}-{repeat}"
        train(load_recipe(name, settings), folder)
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        parts = ("plan", "loading", "transform", "forward", "loss", "backward", "optimiser")
        return min(sum(line[f"seconds/{part}"] for part in parts) for line in lines if "seconds/forward" in line)

    times = {name: min(run(name, i) for i in range(2)) for name in ("hardnet", "adasample")}
    how = f"{times['adasample']:.3f} s; random pairs {times['hardnet']:.3f} s (mining apart)"
    return [("training step, AdaSample from the store", how, times["hardnet"] / times["adasample"], 1 / 1.03)]


def neighbours(work: Path) -> list[Row]:
    """The lists of all items, against the exact searches one would call."""
    import faiss
    from sklearn.neighbors import NearestNeighbors

    from hardmine.store.search import nearest

    x = np.concatenate(list(clustered(5000)))
    rows = np.arange(len(x))

    def by_faiss() -> None:
        index = faiss.IndexFlatL2(DIM)
        index.add(x)
        index.search(x, NEIGHBOURS + 1)

    def by_sklearn() -> None:
        NearestNeighbors(n_neighbors=NEIGHBOURS, algorithm="brute").fit(x).kneighbors()

    ours, flat, brute = fastest(lambda: nearest(x, rows, NEIGHBOURS), by_faiss, by_sklearn, runs=1)
    what = f"exact {NEIGHBOURS} neighbours of {len(x):,} x {DIM}"
    return [
        (what, f"{ours:.1f} s; faiss IndexFlatL2 {flat:.1f} s", flat / ours, 1.0),
        (what, f"{ours:.1f} s; scikit-learn NearestNeighbors, brute {brute:.1f} s", brute / ours, 1.5),
    ]


def clustered(classes: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Unit vectors in seeded clusters of CLASS, class after class, some classes at a time: float32 (n * CLASS, DIM).

    Centres are even on the sphere. A member lies at the angle a from its centre, cos(a)^2 = cos(DEGREES), in an even
    direction u across it. Two members have the inner product cos(a)^2 + sin(a)^2 u.u', and u.u' is 0 on average, so
    their mean angle is DEGREES but for the bend of the arc cosine (39.96 measured).
    """
    rng = np.random.Generator(np.random.Philox(seed))
    along = np.sqrt(np.cos(np.radians(DEGREES)))
    for start in range(0, classes, 4096):
        centre = _unit(rng.standard_normal((min(4096, classes - start), DIM), np.float32)).repeat(CLASS, 0)
        across = rng.standard_normal(centre.shape, np.float32)
        across = _unit(across - (across * centre).sum(1, keepdims=True) * centre)
        yield (along * centre + np.sqrt(1 - along**2) * across).astype(np.float32)


def clustered_round(mining: Path, classes: int) -> None:
    """A committed round of `clustered` descriptors, as a pass would have written it, without a patch store."""
    from hardmine.store.fingerprint import content_key
    from hardmine.store.round_writer import SHARD_ROWS, begin
    from hardmine.store.rounds import MiningStore

    count = classes * CLASS
    network = {"network": "clustered", "classes": classes, "dim": DIM}
    key = content_key(network=network, views=None, split="all", patches="none", dtype="float32")
    entries = np.arange(count), np.zeros(count, np.int16), np.arange(classes + 1) * CLASS
    draft = begin(MiningStore(mining), key, entries, DIM, {"batch": 1, "device": "cpu"})
    left, start = np.empty((0, DIM), np.float32), 0
    for some in clustered(classes):
        left = np.concatenate([left, some])
        while len(left) >= SHARD_ROWS or len(left) == count - start > 0:
            shard, left = left[:SHARD_ROWS], left[SHARD_ROWS:]
            draft.put_shard(start, shard, np.zeros(len(shard), bool))
            start += len(shard)
    counts = {"entries": count, "items": count, "classes": classes, "degenerate": 0}
    draft.commit({"network": "clustered", "step": None, "split": "all", "spread": 1.0, "counts": counts})


def large(items: int, knn_index: str, budget_seconds: float, work: Path) -> list[Row]:
    """Both lists of a round of so many items. Memory: the highest resident size of this process, which has not done
    anything larger before, less what it was before and less the descriptors."""
    from hardmine.mining.mine import rederive
    from hardmine.store.search import nearest_both

    clustered_round(work / "mining", items // CLASS)
    before = _resident()
    began = time.perf_counter()
    done = rederive(work / "mining", derive=["knn"], neighbours=NEIGHBOURS, knn_index=knn_index)
    seconds = time.perf_counter() - began
    beside = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before - 4 * DIM * items
    what = f"{NEIGHBOURS} neighbours of {items:,} x {DIM}, {knn_index}"
    record = done.round.attrs["derived"]["knn"]
    rows: list[Row] = [
        (what, f"{seconds:.0f} s, {record.get('search', 'all with all')}", budget_seconds / seconds, 1),
        (what, f"{beside / 1e9:.2f} GB beside the descriptors, against 4 GB", 4e9 / beside, 1),
    ]
    if record.get("knn_index", "Flat") != "Flat":
        row, label, x = done.round.entry_row, done.round.entry_label, done.round.descriptors()
        some = np.sort(np.random.default_rng(1).choice(items, CHECKED, replace=False))
        exact = nearest_both(x, row, label, NEIGHBOURS, queries=x[some], query_rows=row[some], query_labels=label[some])
        found = {"any label": done.round.knn()[0], "other labels": done.round.knn_other()[0]}
        for (name, lists), true in zip(found.items(), exact):
            recall = float(np.mean([np.isin(a, b).mean() for a, b in zip(true.rows, lists[some])]))
            how = f"recall {recall:.4f} of {name} on {CHECKED:,} queries, against 0.95"
            rows.append((what, how, recall / 0.95, 1))
    return rows


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _resident() -> int:
    """Bytes of this process in memory now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Run the quick benchmarks, or with --large the two large ones instead, and print a line per row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--large", action="store_true", help="the rounds of 200,000 and 1,000,000 items, 4 GB of disk")
    if not parser.parse_args().large:
        show([plan, neighbours, network_passes])
        return
    show([lambda work: large(200_000, "Flat", 360, work), lambda work: large(1_000_000, "IVFclasses,Flat", 900, work)])


if __name__ == "__main__":
    main()
