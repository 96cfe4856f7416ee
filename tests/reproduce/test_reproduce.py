"""The engine: it runs what is missing, reads back what is there, survives kills, and says what a table lacks."""

import csv
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from hardmine.errors import InputError, LockedError, MissingError, NumericalError, StoreError, UnknownNameError
from hardmine.protocols.evaluate import evaluate
from hardmine.reproduce import reproduce
from hardmine.reproduce import run as engine
from hardmine.reproduce.plan import sha256_once
from hardmine.store.files import write_lock
from hardmine.train.loop import train as real_train
from hardmine.train.runs import load

TRAINED = [
    f"{row} on {train}, seed {seed}" for seed in (0, 1) for row in ("hardnet", "adasample") for train in ("one", "two")
]

STORES = {"a": "one", "b": "two"}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def ledger(out, name="tiny-small"):
    """The figures, without the times."""
    found = json.loads((Path(out) / name / "figures.json").read_text())
    return [
        {k: v for k, v in figure.items() if k not in ("training_seconds", "evaluation_seconds", "run")}
        for figure in found
    ]


def test_every_cell_is_measured_and_is_what_evaluate_says(whole, stores):
    _, _, found, said = whole
    assert sorted(found.ran) == sorted([*TRAINED, "sift"])
    assert found.table.gaps == []
    assert found.table.command is None
    assert len(said) == 9 + 8 + 10  # a line for each job, training, and cell
    for figure in found.table.figures.values():
        if figure.row == "sift":
            continue
        assert figure.training_seconds > 0
        test = stores / ("two.store" if figure.test == "b" else "one.store")
        run = Path(figure.run)
        again = evaluate("phototour", test, run / "mining", network=load(run), name="x", device="cpu")
        assert again.embedded == 0
        assert again.results["x"].metrics["fpr95"] == figure.metrics["fpr95"]


def test_the_table_has_means_changes_and_the_published_figures(whole):
    _, _, found, _ = whole
    rows = {row.name: entries for row, entries in zip(found.table.rows, found.table.entries)}
    assert [h.title for h in found.table.headings] == ["one -> two", "two -> one", "mean"]
    for name in ("hardnet", "adasample"):
        for place, (train, test) in enumerate(("ab", "ba")):
            mine = [
                100 * f.metrics["fpr95"]
                for f in sorted(found.table.figures.values(), key=lambda f: f.seed)
                if (f.row, f.train, f.test) == (name, train, test)
            ]
            assert rows[name][place].values == pytest.approx(mine)
            assert rows[name][place].summary.deviation == pytest.approx(np.std(mine, ddof=1))
        both = np.mean([rows[name][0].values, rows[name][1].values], axis=0)
        assert rows[name][2].values == pytest.approx(both)
    assert rows["adasample"][0].published_change == pytest.approx(-0.25)
    assert (rows["hardnet"][2].published, rows["adasample"][2].published) == (3.0, None)
    assert rows["sift"][0].values[0] != rows["sift"][1].values[0]
    wanted = rows["adasample"][2].summary.mean / rows["hardnet"][2].summary.mean - 1
    assert rows["adasample"][2].summary.change == pytest.approx(wanted)


def test_the_files_say_the_same(whole):
    _, out, found, _ = whole
    folder = out / "tiny-small"
    with open(folder / "results.csv") as file:
        lines = list(csv.DictReader(file))
    assert [(line["row"], line["train"], line["test"]) for line in lines[:3]] == [
        ("hardnet", "one", "two"),
        ("hardnet", "two", "one"),
        ("hardnet", "", "mean"),
    ]
    assert float(lines[0]["mean"]) == found.table.entries[0][0].summary.mean
    assert {line["published_is_of_this_data"] for line in lines} == {"false"}
    text = (folder / "results.md").read_text()
    assert "published, other data" in text
    assert "no figure here is to be read against them" in text
    assert f"{found.table.entries[1][2].summary.mean:.2f}" in text
    assert "PARTIAL" not in text
    picture = cv2.imread(str(folder / "results.png"))
    assert picture is not None
    assert picture.std() > 1


def test_the_same_command_again_trains_and_measures_nothing(whole, stores, monkeypatch):
    file, out, found, _ = whole
    monkeypatch.setattr(engine, "train", lambda *a, **k: pytest.fail("trained again"))
    monkeypatch.setattr(engine, "evaluate", lambda *a, **k: pytest.fail("measured again"))
    again = reproduce(str(file), stores, out, device="cpu")
    assert again.ran == []
    assert sorted(again.done_before) == sorted([*TRAINED, "sift"])
    assert again.table.json() == found.table.json()


def test_figures_are_those_of_their_settings_and_data(whole, stores, tiny, tmp_path):
    """Other settings, other pairs: other figures. The same data in another place: the same."""
    _, out, _, _ = whole
    dry = {"device": "cpu", "dry_run": True}
    changed = tiny('"optimizer.lr" = 0.1', '"optimizer.lr" = 0.2')
    assert sorted(reproduce(changed, stores, out, **dry).planned) == sorted(TRAINED)
    shutil.copytree(stores, tmp_path / "moved")
    assert reproduce(tiny(), tmp_path / "moved", out, **dry).planned == []
    manifest = tmp_path / "moved" / "two.store" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["pairs"][0]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(content))
    planned = reproduce(tiny(), tmp_path / "moved", out, **dry).planned
    assert planned == ["hardnet on one, seed 0", "adasample on one, seed 0", "sift", *planned[3:]]
    assert not any(" on two" in job for job in planned)


def test_equal_runs_of_two_sets_are_trained_once(whole, stores, tmp_path, monkeypatch):
    file, out, _, _ = whole
    other = tmp_path / "other.toml"
    other.write_text(file.read_text().replace("A tiny table", "Another table"))
    steps = []
    monkeypatch.setattr(engine, "train", lambda *a, **k: steps.append(real_train(*a, **k)) or steps[-1])
    found = reproduce(str(other), stores, out, device="cpu", rows=["hardnet"])
    assert len(found.ran) == 4
    assert [done.trained for done in steps] == [0] * 4


def test_data_of_other_content_are_another_run(stores, tiny, tmp_path, whole):
    """Swapped stores: the same recipe and the same paths, and nothing of the old runs is used."""
    data = tmp_path / "data"
    shutil.copytree(stores / "one.store", data / "two.store")
    shutil.copytree(stores / "two.store", data / "one.store")
    mine, out = tiny(), tmp_path / "out"
    first = reproduce(mine, data, out, rows=["hardnet"], seeds=[0], device="cpu")
    (data / "two.store").rename(data / "old.store")
    (data / "one.store").rename(data / "two.store")
    (data / "old.store").rename(data / "one.store")
    second = reproduce(mine, data, out, rows=["hardnet"], seeds=[0], device="cpu")
    assert len(first.ran) == len(second.ran) == 2
    expected = {
        figure["test"]: figure["metrics"]
        for figure in ledger(whole[1])
        if (figure["row"], figure["seed"]) == ("hardnet", 0)
    }
    assert {f.test: f.metrics for f in second.table.figures.values()} == expected


def test_a_part_says_what_is_missing_and_the_command_that_makes_it(stores, tiny, tmp_path):
    chosen = {"rows": ["sift", "hardnet"], "seeds": [1], "device": "cpu"}
    found = reproduce(tiny(), stores, tmp_path / "out", **chosen)
    assert found.ran == ["hardnet on one, seed 1", "hardnet on two, seed 1", "sift"]
    assert [(cell.row, cell.seed) for cell in found.table.gaps] == [("adasample", 1)] * 2
    words = shlex.split(found.table.command)
    assert words[:3] == ["hardmine", "reproduce", str(tmp_path / "tiny.toml")]
    assert words[words.index("--rows") + 1] == "adasample"
    assert words[words.index("--seed-list") + 1] == "1"
    text = (tmp_path / "out" / "tiny-small" / "results.md").read_text()
    assert "PARTIAL: 2 of 6 cells are missing" in text
    assert found.table.command in text
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert "PARTIAL" not in (tmp_path / "out" / "tiny-small" / "results.md").read_text()


def test_a_dry_run_trains_nothing_and_writes_nothing(stores, tiny, tmp_path):
    found = reproduce(tiny(), stores, tmp_path / "out", dry_run=True)
    assert sorted(found.planned) == sorted([*TRAINED, "sift"])
    assert not (tmp_path / "out").exists()


def test_a_missing_store_is_named_with_the_command_that_writes_it(stores, tiny, tmp_path):
    part = tmp_path / "part"
    shutil.copytree(stores / "one.store", part / "one.store")
    with pytest.raises(MissingError, match=r"two\.store\. Write it with: hardmine ingest KIND SRC .*two\.store"):
        reproduce(tiny(), part, tmp_path / "out")
    with pytest.raises(MissingError, match=r"hardmine ingest phototour PHOTOTOUR/(liberty|notredame)"):
        reproduce("adasample-table3", part, tmp_path / "out", "paper")
    assert not (tmp_path / "out").exists()


def test_missing_weights_are_named(stores, tiny, tmp_path):
    mine = tiny('contender = "sift"', 'contender = "tfeat={weights}"\nweights = "tfeat.params"')
    with pytest.raises(MissingError, match=r"'sift' needs the published weights .*weights/tfeat\.params"):
        reproduce(mine, stores, tmp_path / "out")


def test_trainings_start_from_weights_of_the_data_folder(stores, tiny, tmp_path):
    """Named by file, known by content: other weights are other figures and another run, in another place the same."""
    from hardmine.train.networks import build

    data = tmp_path / "data"
    shutil.copytree(stores, data)
    mine = tiny('"optimizer.lr" = 0.1', '"optimizer.lr" = 0.1\n"network.weights" = "{weights}/start.pth"')
    part = {"rows": ["hardnet"], "seeds": [0], "device": "cpu"}
    with pytest.raises(MissingError, match=r"'hardnet' needs the published weights .*weights/start\.pth"):
        reproduce(mine, data, tmp_path / "out", **part)
    (data / "weights").mkdir()
    state = build("tfeat", {"unit_norm": True}, 7).state_dict()
    torch.save(state, data / "weights" / "start.pth")
    first = reproduce(mine, data, tmp_path / "out", **part)
    assert len(first.ran) == 2
    shutil.copytree(data, tmp_path / "moved")
    assert reproduce(mine, tmp_path / "moved", tmp_path / "out", dry_run=True, **part).planned == []
    torch.save({name: value * 1.5 for name, value in state.items()}, tmp_path / "other.pth")
    shutil.copy(tmp_path / "other.pth", data / "weights" / "start.pth")
    sha256_once.cache_clear()  # it is one process here
    second = reproduce(mine, data, tmp_path / "out", **part)
    assert len(second.ran) == 2
    assert {f.run for f in first.table.figures.values()}.isdisjoint(f.run for f in second.table.figures.values())


def test_an_unfinished_training_is_continued(stores, tiny, tmp_path, monkeypatch, whole):
    """An error in the midst of a run, and one between training and measuring."""
    calls = []

    def broken(recipe, path, *functions, **options):
        calls.append(path)
        if len(calls) == 1:
            short = recipe.model_copy(update={"train": recipe.train})
            options["progress"] = lambda done, total, figures: (
                (_ for _ in ()).throw(OSError("power")) if done == 3 else None
            )
            return real_train(short, path, *functions, **options)
        return real_train(recipe, path, *functions, **options)

    monkeypatch.setattr(engine, "train", broken)
    with pytest.raises(OSError, match="power"):
        reproduce(tiny(), stores, tmp_path / "out", device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "evaluate", lambda *a, **k: (_ for _ in ()).throw(OSError("power")))
        with pytest.raises(OSError, match="power"):
            reproduce(tiny(), stores, tmp_path / "out", device="cpu")
    reproduce(tiny(), stores, tmp_path / "out", device="cpu")
    assert ledger(tmp_path / "out") == ledger(whole[1])


def child(set_file, stores, out):
    """The command line of a run in a process of its own. Runs are compared with runs of such processes alone: what a
    test process did before (its thread count, say) may decide the last bits of its sums."""
    words = ["reproduce", set_file, "--data", stores, "--out", out, "--device", "cpu", "--json"]
    return [sys.executable, "-m", "hardmine", *map(str, words)]


@pytest.fixture(scope="module")
def undisturbed(whole, stores, tmp_path_factory):
    """The figures of the tiny set, from a process that nobody killed."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    subprocess.run(child(whole[0], stores, out), check=True, capture_output=True, env=ENVIRONMENT)
    return ledger(out)


@pytest.mark.parametrize("moment", [0.35, 0.75])
def test_kill_9_loses_no_figure(undisturbed, stores, tiny, tmp_path, moment):
    command = child(tiny(), stores, tmp_path / "out")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    target = random.Random(moment).randint(4, 8) if moment < 0.5 else 18  # lines heard before the kill
    for _ in range(target):
        process.stderr.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = ledger(tmp_path / "out") if (tmp_path / "out" / "tiny-small" / "figures.json").exists() else []
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert ledger(tmp_path / "out") == undisturbed
    assert all(figure in ledger(tmp_path / "out") for figure in kept)
    assert len(report["done_before"]) + len(report["ran"]) == 9
    assert report["cells_missing"] == 0


def test_a_run_that_diverges_is_said_and_does_not_stop_the_others(stores, tiny, tmp_path, monkeypatch):
    def diverging(recipe, *args, **options):
        if recipe.sampler.name == "adasample":
            raise NumericalError("the loss is nan at step 2")
        return real_train(recipe, *args, **options)

    monkeypatch.setattr(engine, "train", diverging)
    found = reproduce(tiny(), stores, tmp_path / "out", seeds=[0], device="cpu")
    assert found.ran == ["hardnet on one, seed 0", "hardnet on two, seed 0", "sift"]
    assert found.table.failed == dict.fromkeys(
        ("adasample on one, seed 0", "adasample on two, seed 0"), "the loss is nan at step 2"
    )
    text = (tmp_path / "out" / "tiny-small" / "results.md").read_text()
    assert "FAILED: adasample on one, seed 0: the loss is nan at step 2" in text
    assert "PARTIAL" in text


def test_a_slow_training_is_said(whole, stores):
    file, out, found, _ = whole
    figures = json.loads((out / "tiny-small" / "figures.json").read_text())
    before = json.dumps(figures)
    figures[0]["training_seconds"] = 61.2
    try:
        (out / "tiny-small" / "figures.json").write_text(json.dumps(figures))
        slow = reproduce(str(file), stores, out, dry_run=True).table.slow()
    finally:
        (out / "tiny-small" / "figures.json").write_text(before)
    assert slow == [f"{figures[0]['row']} on {STORES[figures[0]['train']]}, seed {figures[0]['seed']} (61 s)"]
    assert found.table.slow() == []


def test_sweeps_are_drawn_to_infinity(stores, tiny, tmp_path):
    mine = tiny(
        'source = "the tests"', 'source = "the tests"\nx_title = "lambda"',
        'title = "HardNet"', 'title = "HardNet"\nseries = "s"\nx = 0',
        'title = "AdaSample"', 'title = "AdaSample"\nseries = "s"\nx = inf\nset = { "sampler.lam" = inf }',
        'title = "SIFT"', 'title = "SIFT"\nseries = "sift"\nx = 1',
    )  # fmt: skip
    found = reproduce(mine, stores, tmp_path / "out", seeds=[0], device="cpu")
    assert found.table.gaps == []
    assert cv2.imread(str(tmp_path / "out" / "tiny-small" / "results.png")).std() > 1
    runs = [Path(f.run) for f in found.table.figures.values() if f.row == "adasample"]
    assert {json.loads((run / "run.json").read_text())["recipe"]["sampler"]["lam"] for run in runs} == {float("inf")}


def test_a_run_with_an_infinite_option_can_be_continued(stores, tmp_path):
    from hardmine.train.recipe import load_recipe
    from hardmine.train.runs import Run

    settings = [f"data.store={stores / 'one.store'}", "sampler.lam=inf", "train.pairs=6", "train.lag=2"]
    recipe = load_recipe("adasample", [*settings, "train.steps=4", "train.mine_every=2", "train.checkpoint_every=2"])
    assert recipe.digest() != load_recipe("adasample", [*settings[:1], *settings[2:]]).digest()

    def stop(done, total, figures):
        raise OSError("power")

    with pytest.raises(OSError, match="power"):
        real_train(recipe, tmp_path / "run", device="cpu", progress=stop)
    assert Run.open(tmp_path / "run").recipe == recipe
    assert real_train(recipe, tmp_path / "run", device="cpu").trained == 2


def test_mistakes_are_one_message(stores, tiny, tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'adasample'"):
        reproduce(tiny(), stores, tmp_path / "out", rows=["adasampel"])
    with pytest.raises(InputError, match="seeds"):
        reproduce(tiny(), stores, tmp_path / "out", seeds=[-1])
    with pytest.raises(InputError, match="no scale 'paper'"):
        reproduce("local-descriptors", stores, tmp_path / "out", "paper")
    with pytest.raises(InputError, match="asks for 'fpr'"):
        reproduce(tiny('metric = "fpr95"', 'metric = "fpr"'), stores, tmp_path / "out", rows=["sift"])
    with write_lock(tmp_path / "out" / "tiny-small", "the results"), pytest.raises(LockedError):
        reproduce(tiny(), stores, tmp_path / "out")
    (tmp_path / "out" / "tiny-small" / "figures.json").write_text("[{]")
    with pytest.raises(StoreError, match=r"figures\.json is damaged"):
        reproduce(tiny(), stores, tmp_path / "out")
