"""The three HPatches tasks against loops that follow the benchmark's definitions entry by entry."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hpatches_world import described, drawn, stored

from hardmine.errors import InputError, MissingError, NumericalError, UnknownNameError
from hardmine.protocols.base import protocol

SIZES = {"i_one": 20, "v_three": 17, "v_two": 20}
IMAGES = {"easy": "e", "hard": "h", "tough": "t"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("hpatches"), SIZES)


def walk(scores, labels, numpos=None):
    """(Python's ap, MATLAB's ap, ROC area) entry by entry."""
    ranked = [label for _, label in sorted(zip(scores, labels), key=lambda pair: -pair[0])]  # Python's sort is stable
    total = sum(ranked) if numpos is None else numpos
    ap = steps = area = 0.0
    true = 0
    before = 1.0
    for seen, label in enumerate(ranked, start=1):
        true += label
        if label:
            ap += (before + true / seen) / 2 / total
            steps += true / seen / total
        elif sum(ranked):
            area += true / sum(ranked) / (len(ranked) - sum(ranked))
        before = true / seen
    return ap, steps, area


def gap(x, y, distance="l2"):
    x, y = ([float(v) for v in side] for side in (x, y))
    if distance == "masked_l1":
        half = len(x) // 2
        x, y = ([a * b for a, b in zip(side[:half], side[half:])] for side in (x, y))
    if distance == "l2":
        return sum((a - b) ** 2 for a, b in zip(x, y)) ** 0.5
    return sum(abs(a - b) for a, b in zip(x, y))


def write(file: Path, header: str, rows) -> None:
    with file.open("w", newline="") as opened:
        opened.write(header + "\n")
        csv.writer(opened, lineterminator="\n").writerows(rows)


def pair_files(folder: Path, split: str, rows: int = 60) -> dict[str, list]:
    """Random verification lists with repeats, over SIZES."""
    rng, names = np.random.default_rng(3), list(SIZES)
    made: dict[str, list] = {"pos": [], "neg_intra": [], "neg_inter": []}
    for _ in range(rows):
        s, z = (names[i] for i in rng.choice(3, 2, replace=False))
        t = rng.choice(6, 2, replace=False).tolist()
        i, j = rng.choice(SIZES[s], 2, replace=False).tolist()
        made["pos"].append((s, t[0], i, s, t[1], i))
        made["neg_intra"].append((s, t[0], i, s, t[1], j))
        made["neg_inter"].append((s, t[0], i, z, t[1], int(rng.integers(SIZES[z]))))
    made["pos"][7] = made["pos"][3]
    folder.mkdir(exist_ok=True)
    for name, table in made.items():
        write(folder / f"verif_{name}_split-{split}.csv", "s1,t1,idx1,s2,t2,idx2", table)
    return made


@pytest.mark.parametrize("distance", ["l2", "l1", "masked_l1"])
@pytest.mark.parametrize("levels", [0, 1])
def test_verification_equals_the_walk(store, tmp_path, distance, levels):
    values = drawn(SIZES, levels=levels)
    lists = pair_files(tmp_path / "tasks", "all")
    options = {"tasks": tmp_path / "tasks", "distance": distance}
    found = protocol("hpatches-verification", options).evaluate(store, described(store, values), None)
    assert len(found.details) == 18
    averages = []
    for noise, letter in IMAGES.items():
        distances = {}
        for name, rows in lists.items():
            distances[name] = [
                gap(*(values[s, f"{letter}{t}" if t else "ref"][i] for s, t, i in (row[:3], row[3:])), distance)
                for row in rows
            ]
        for negatives in ("inter", "intra"):
            scores = [-d for d in distances[f"neg_{negatives}"] + distances["pos"]]
            labels = [0] * 60 + [1] * 60
            few = walk(scores[:72], labels[:72])
            cells = found.details
            assert cells[f"balanced-{noise}-{negatives}-auc"] == pytest.approx(walk(scores, labels)[2], abs=1e-7)
            assert cells[f"imbalanced-{noise}-{negatives}-ap"] == pytest.approx(few[0], abs=1e-7)
            assert cells[f"imbalanced-{noise}-{negatives}-ap-matlab"] == pytest.approx(few[1], abs=1e-7)
            averages.append((few[0], few[1], walk(scores, labels)[2]))
    expected = dict(zip(("map", "map-matlab", "auc"), np.mean(averages, axis=0)))
    assert found.metrics == pytest.approx(expected, abs=1e-7)
    assert found.facts["partial"] is False
    assert found.facts["generated"] is False


@pytest.mark.parametrize("distance", ["l2", "l1", "masked_l1"])
@pytest.mark.parametrize("levels", [0, 1])
def test_matching_equals_the_walk(store, distance, levels):
    values = drawn(SIZES, noise=1.5, levels=levels)
    found = protocol("hpatches-matching", {"distance": distance}).evaluate(store, described(store, values), None)
    every: dict[str, list] = {}
    for name, size in SIZES.items():
        for noise, letter in IMAGES.items():
            for image in range(1, 6):
                other = values[name, f"{letter}{image}"]
                scores, ratios, right = [], [], []
                for i in range(size):
                    row = [gap(values[name, "ref"][i], y, distance) for y in other]
                    nearest = row.index(min(row))  # the first
                    first, second = sorted(row)[:2]
                    scores.append(-first)
                    ratios.append(-(first / second if second else 1.0))
                    right.append(nearest == i)
                ap, steps, _ = walk(scores, right, size)
                measured = (ap, steps, walk(ratios, right, size)[1], sum(right) / size)
                for key in (noise, "all", f"{ {'i': 'illum', 'v': 'view'}[name[0]] }-{noise}"):
                    every.setdefault(key, []).append(measured)
    names = ("ap", "ap-matlab", "ap-ratio", "success")
    overall = dict(zip(("map", "map-matlab", "map-ratio", "success"), np.mean(every.pop("all"), axis=0)))
    assert found.metrics == pytest.approx(overall, abs=1e-7)
    cells = {f"{key}-{n}": v for key, rows in every.items() for n, v in zip(names, np.mean(rows, axis=0))}
    cells["map-kinds"] = np.mean([np.mean([cells[f"{kind}-{n}-ap"] for n in IMAGES]) for kind in ("view", "illum")])
    assert found.details == pytest.approx(cells, abs=1e-7)
    assert 0.005 < found.metrics["map"] < 0.98


@pytest.mark.parametrize("distance", ["l2", "l1", "masked_l1"])
@pytest.mark.parametrize("levels", [0, 1])
def test_retrieval_equals_the_walk(store, tmp_path, monkeypatch, distance, levels):
    monkeypatch.setattr("hardmine.protocols.hpatches.retrieval.POOLS", (10, 15, 25, 100, 500))
    monkeypatch.setattr("hardmine.protocols.hpatches.retrieval.BLOCK", 3)
    values = drawn(SIZES, levels=levels)
    rng, names = np.random.default_rng(4), list(SIZES)
    items = [(s, i) for s in names for i in range(SIZES[s])]
    rng.shuffle(items)
    items = [(str(s), int(i)) for s, i in items]
    queries, distractors = items[:11], items[11:51]
    for name, rows in (("queries", queries), ("distractors", distractors)):
        write(tmp_path / f"retr_{name}_split-all.csv", "s,idx", rows)
    options = {"tasks": tmp_path, "distance": distance}
    found = protocol("hpatches-retrieval", options).evaluate(store, described(store, values), None)
    pools = (10, 15, 25, 100)
    cells: dict[str, list] = {}
    for s, i in queries:
        query = values[s, "ref"][i]
        others = [gap(query, values[z, "ref"][j], distance) for z, j in distractors if z != s]
        for noise, letter in IMAGES.items():
            own = [gap(query, values[s, f"{letter}{k}"][i], distance) for k in range(1, 6)]
            for pool in pools:
                scores = [-d for d in (own + others)[:pool]]
                ap, steps, _ = walk(scores, [k < 5 for k in range(len(scores))])
                cells.setdefault(f"{noise}-{pool}-ap", []).append(ap)
                cells.setdefault(f"{noise}-{pool}-ap-matlab", []).append(steps)
    means = {name: float(np.mean(each)) for name, each in cells.items()}
    means |= {f"{noise}-ap": means[f"{noise}-100-ap"] for noise in IMAGES}
    assert found.details == pytest.approx(means, abs=1e-7)
    largest = {m: np.mean([means[f"{n}-100-{m}"] for n in IMAGES]) for m in ("ap", "ap-matlab")}
    pooled = np.mean([means[f"{n}-{pool}-ap"] for n in IMAGES for pool in pools])
    expected = {"map": largest["ap"], "map-matlab": largest["ap-matlab"], "map-pools": pooled}
    assert found.metrics == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("task", ["verification", "matching", "retrieval"])
def test_perfect_descriptors_have_every_figure_at_one(store, task, tmp_path):
    values = drawn(SIZES, noise=0)
    options = {"queries": 5, "distractors": 30} if task == "retrieval" else {}
    if task == "verification":  # lists that are drawn hold negatives of one and the same patch
        pair_files(tmp_path, "all")
        options = {"tasks": tmp_path}
    found = protocol(f"hpatches-{task}", options).evaluate(store, described(store, values), None)
    assert all(value == pytest.approx(1) for value in found.metrics.values())
    assert all(value == pytest.approx(1) for value in found.details.values())


@pytest.mark.parametrize("task", ["verification", "matching", "retrieval"])
def test_the_figure_is_drawn(store, task, tmp_path):
    options = {"pairs": 100} if task == "verification" else {}
    method = protocol(f"hpatches-{task}", options)
    results = {
        name: method.evaluate(store, described(store, drawn(SIZES, noise=noise)), None)
        for name, noise in (("good", 0.2), ("bad", 3.0))
    }
    assert results["good"].metrics["map"] > results["bad"].metrics["map"]
    method.plot(results, tmp_path / "dots.png")
    assert (tmp_path / "dots.png").stat().st_size > 5000
    with pytest.raises(MissingError, match="there is no folder"):
        method.plot(results, tmp_path / "nowhere" / "dots.png")


def test_whitening_is_that_of_the_benchmark(tmp_path):
    """Against the covariance written out; fitted on the training sequences of split a that are there."""
    sizes = {"v_birdwoman": 15, "i_dome": 12, "v_wall": 14}  # test, train, train
    store = stored(tmp_path, sizes)
    values = drawn(sizes, dim=5)
    plain, whitened = (
        protocol("hpatches-matching", {"task": "a", "normalise": n}).evaluate(store, described(store, values), None)
        for n in ("none", "pca-power")
    )
    train = np.concatenate([values["i_dome", "ref"], values["v_wall", "ref"]]).astype(np.float64)
    centred = train - train.mean(0)
    d, v = np.linalg.eigh(centred.T @ centred / len(train))
    w = v @ np.diag(1 / np.sqrt(np.maximum(d, d[3]))) @ v.T
    by_hand = {}
    for key, x in values.items():
        y = (x - x.mean(0)) @ w
        y = np.sign(y) * np.abs(y) ** 0.5
        by_hand[key] = y / np.linalg.norm(y, axis=1, keepdims=True)
    expected = protocol("hpatches-matching", {"task": "a"}).evaluate(store, described(store, by_hand), None)
    assert whitened.metrics == pytest.approx(expected.metrics, abs=1e-9)
    assert whitened.metrics != plain.metrics
    assert whitened.facts["fitted_on"] == "2 of 76 training sequences"
    assert whitened.facts["sequences"] == 1
    assert whitened.facts["missing_sequences"] == 39
    for options, message in (({"task": "full"}, "has none"), ({"task": "all"}, "choose task=a, b or c")):
        with pytest.raises(InputError, match=message):
            protocol("hpatches-matching", {**options, "normalise": "pca-power"}).evaluate(
                store, described(store, values), None
            )


def test_whitening_needs_training_sequences_that_are_there(tmp_path):
    store = stored(tmp_path, {"v_birdwoman": 5, "i_dome": 5}, official="a")
    values = drawn({"v_birdwoman": 5, "i_dome": 5})
    method = protocol("hpatches-matching", {"task": "a", "normalise": "pca-power"})
    with pytest.raises(InputError, match=r"none of them is among .*without the option `official`"):
        method.evaluate(store, described(store, values), "test")
    assert protocol("hpatches-matching", {"task": "a"}).evaluate(store, described(store, values), "test").metrics


def test_descriptors_and_stores_that_cannot_be_used(store, tmp_path, phototour):
    from hardmine.pipeline.ingest import ingest
    from hardmine.store.patches import PatchStore

    phototour(tmp_path / "raw", count=12)
    ingest("phototour", tmp_path / "raw", tmp_path / "other")
    method = protocol("hpatches-matching", {})
    with pytest.raises(InputError, match=r"ingested as 'phototour': the HPatches tasks need"):
        method.evaluate(PatchStore.open(tmp_path / "other"), lambda rows: np.zeros((len(rows), 4)), None)
    with pytest.raises(NumericalError, match="not finite"):
        method.evaluate(store, lambda rows: np.full((len(rows), 4), np.nan), None)
    with pytest.raises(InputError, match="3 descriptors came back for the 20 patches of i_one/ref"):
        method.evaluate(store, lambda rows: np.zeros((3, 4)), None)
    with pytest.raises(InputError, match=r"5 numbers, which is odd"):
        protocol("hpatches-matching", {"distance": "masked_l1"}).evaluate(
            store, lambda rows: np.zeros((len(rows), 5)), None
        )
    with pytest.raises(InputError, match="none of the sequences of the HPatches split 'b'"):
        protocol("hpatches-matching", {"task": "b"}).evaluate(store, lambda rows: np.zeros((len(rows), 4)), None)
    with pytest.raises(UnknownNameError, match="Did you mean 'distance'"):
        protocol("hpatches-matching", {"distanse": "l1"})
