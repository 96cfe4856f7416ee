"""The loop end to end on a small store: exact resume, no leak between splits, and what a run leaves behind."""

import json
import time

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hardmine.errors import InputError, MissingError, NumericalError
from hardmine.mining.samplers import PairSampler
from hardmine.protocols.evaluate import check_evaluations, evaluate, score, splits_of
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import MiningStore
from hardmine.train.loop import train
from hardmine.train.recipe import load_recipe
from hardmine.train.runs import Run, load

SAMPLERS = {
    "random": ["sampler.name=random"],
    "hardpos": ["sampler.name=hardpos"],
    "store": [],
    "online": ["sampler.descriptors=online", "train.lag=1"],
    "views": ["views.per_class=5"],
}


def recipe(stores, *overrides, base="adasample", **more):
    options = [
        f"data.store={stores['train']}",
        "data.split=train",
        "train.pairs=8",
        "train.steps=7",
        "train.mine_every=3",
        "train.lag=2",
        "train.checkpoint_every=2",
        "train.log_every=1",
    ]
    if "sampler.name=random" in overrides or "sampler.name=hardpos" in overrides:
        base = "hardnet"
    return load_recipe(base, [*options, *overrides])


class Stop(Exception):
    pass


def stop_at(step):
    def progress(done, total, figures):
        if done == step:
            raise Stop

    return progress


def arrays(run):
    rounds = MiningStore(run / "mining").rounds() if (run / "mining").exists() else []
    return {r.number: (r.attrs, r.descriptors().tobytes(), r.entry_row.tobytes()) for r in rounds}


def figures(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in lines]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_run_that_was_stopped_ends_with_the_same_bits(kind, stores, tmp_path):
    chosen = recipe(stores, *SAMPLERS[kind])
    straight = train(chosen, tmp_path / "straight")
    assert straight.trained == 7
    for step in (1, 4, 5, 7):
        with pytest.raises(Stop):
            train(chosen, tmp_path / "stopped", progress=stop_at(step))
    resumed = train(chosen, tmp_path / "stopped", must_resume=True)
    assert resumed.trained < 7
    assert resumed.result == straight.result
    weights = "weights.safetensors"
    assert (tmp_path / "stopped" / weights).read_bytes() == (tmp_path / "straight" / weights).read_bytes()
    assert arrays(tmp_path / "stopped") == arrays(tmp_path / "straight")
    assert figures(tmp_path / "stopped") == figures(tmp_path / "straight")
    assert train(chosen, tmp_path / "stopped").trained == 0


@pytest.mark.parametrize("sampler", ["store", "online"])
def test_no_second_is_counted_twice(stores, tmp_path, sampler):
    """Online, embedding is a part of planning; from the store it is mining."""
    began = time.perf_counter()
    train(recipe(stores, *SAMPLERS[sampler]), tmp_path / "run")
    took, seconds = time.perf_counter() - began, Run.open(tmp_path / "run").seconds()
    assert 0 < sum(seconds.values()) <= took
    assert ("mining" in seconds) == (sampler == "store")


def test_another_number_of_loader_workers_goes_on_with_the_same_bits(stores, tmp_path):
    straight = train(recipe(stores, "train.lag=5"), tmp_path / "straight")
    with pytest.raises(Stop):
        train(recipe(stores, "train.lag=5", "data.loader_workers=2"), tmp_path / "stopped", progress=stop_at(5))
    train(recipe(stores, "train.lag=5"), tmp_path / "stopped")
    assert straight.result["steps"] == 7
    weights = "weights.safetensors"
    assert (tmp_path / "stopped" / weights).read_bytes() == (tmp_path / "straight" / weights).read_bytes()


@pytest.mark.parametrize("kind", SAMPLERS)
def test_no_plan_holds_a_row_of_another_split(kind, stores, tmp_path, monkeypatch, train_store):
    plans, plain = [], PairSampler.plan
    monkeypatch.setattr(PairSampler, "plan", lambda self, step: plans.append(plain(self, step)) or plans[-1])
    train(recipe(stores, *SAMPLERS[kind]), tmp_path / "run")
    allowed, forbidden = set(train_store.rows("train")), set(train_store.rows("val"))
    assert len(plans) == 7
    seen = {row for plan in plans for row in plan}
    assert forbidden
    assert seen <= allowed
    for mined in MiningStore(tmp_path / "run" / "mining").rounds() if (tmp_path / "run" / "mining").exists() else []:
        assert set(mined.entry_row) <= allowed


def test_training_lowers_the_loss_and_evaluate_embeds_nothing_afterwards(stores, tmp_path):
    chosen = recipe(
        stores,
        "train.steps=40",
        "train.mine_every=20",
        "train.pairs=16",
        "train.checkpoint_every=20",
        f"evaluation=[{{store='{stores['test']}'}}]",
        f"validation={{store='{stores['train']}', split='val', every=20}}",
    )
    done = train(chosen, tmp_path / "run", score)
    losses = [line["unweighted_loss"] for line in figures(tmp_path / "run") if "unweighted_loss" in line]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert done.result["best"]["metric"] == "fpr95"
    assert done.result["weights_of_step"] in (20, 40)
    report = evaluate("phototour", stores["test"], tmp_path / "run" / "mining", network=load(tmp_path / "run"))
    assert report.embedded == 0
    by_number = evaluate("phototour", stores["test"], tmp_path / "run" / "mining", round="latest")
    assert by_number.results["l2net"].metrics == report.results["l2net"].metrics
    with pytest.raises(Exception, match="another patch store"):
        evaluate("phototour", stores["train"], tmp_path / "run" / "mining", round="latest", split="val")


def test_tensorboard_holds_the_log(stores, tmp_path):
    train(recipe(stores), tmp_path / "run")
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    logged = {line["step"]: line["loss"] for line in figures(tmp_path / "run") if "loss" in line}
    shown = {event.step: event.value for event in board.Scalars("loss")}
    assert shown == pytest.approx(logged)
    assert {"exponent", "average_loss", "lr", "spread"} <= set(board.Tags()["scalars"])


def test_the_best_weights_are_those_of_the_best_validation(stores, tmp_path):
    values = iter([0.5, 0.2, 0.4])

    def fake(network, evaluation, device):
        return {"fpr95": next(values)}

    chosen = recipe(
        stores, "train.steps=6", f"validation={{store='{stores['train']}', split='val', every=2}}", "train.mine_every=6"
    )
    done = train(chosen, tmp_path / "run", fake)
    assert done.result["best"] == {"step": 4, "metric": "fpr95", "value": 0.2}
    longer = train(recipe(stores, "train.steps=6", "train.mine_every=6"), tmp_path / "last")
    assert longer.result["weights_of_step"] == 6
    best, last = load(tmp_path / "run").state_dict(), load(tmp_path / "last").state_dict()
    assert any(not torch.equal(best[name], last[name]) for name in best)


def test_load_gives_an_eval_network_from_a_run_or_from_its_weights_file(stores, tmp_path):
    train(recipe(stores), tmp_path / "run")
    network = load(tmp_path / "run")
    assert not network.training
    copied = tmp_path / "copied.safetensors"
    copied.write_bytes((tmp_path / "run" / "weights.safetensors").read_bytes())
    assert load(copied).identity() == network.identity()
    pixels = torch.rand(3, 1, 32, 32)
    assert torch.equal(network(pixels), load(copied)(pixels))
    with pytest.raises(MissingError, match="no run and no weights file"):
        load(tmp_path / "nowhere.safetensors")


def test_a_folder_of_another_run_is_refused(stores, tmp_path):
    train(recipe(stores), tmp_path / "run")
    with pytest.raises(InputError, match="a run of another recipe"):
        train(recipe(stores, "train.seed=1"), tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="not empty and holds no run"):
        train(recipe(stores), tmp_path / "full")
    with pytest.raises(MissingError, match="no run to resume"):
        train(recipe(stores), tmp_path / "none", must_resume=True)
    assert not (tmp_path / "none").exists()


def test_a_recipe_that_did_not_fit_does_not_keep_its_folder(stores, tmp_path):
    """Too many pairs for the store are said once the folder is there; with fewer the same command goes on."""
    too_many = recipe(stores, "train.pairs=10000")
    with pytest.raises(InputError, match="a batch of 10000 pairs"):
        train(too_many, tmp_path / "run")
    with pytest.raises(InputError, match="a run of another recipe"):  # nothing of another one is resumed
        train(recipe(stores), tmp_path / "run", must_resume=True)
    done = train(recipe(stores), tmp_path / "run")
    assert Run.open(tmp_path / "run").recipe.train.pairs == recipe(stores).train.pairs
    assert done.trained == recipe(stores).train.total_steps


def test_angles_are_of_unit_descriptors(stores, tmp_path):
    given = recipe(stores, "sampler={name='adasample', distance='angle'}", "network={name='tfeat'}")
    with pytest.raises(InputError, match=r"sampler\.distance = 'angle' is of unit descriptors, and network 'tfeat'"):
        train(given, tmp_path / "run")


def test_a_run_on_changed_data_is_refused(stores, tmp_path):
    with pytest.raises(Stop):
        train(recipe(stores), tmp_path / "run", progress=stop_at(3))
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(header | {"data": "something else"}))
    with pytest.raises(InputError, match="another content of the patch store"):
        train(recipe(stores), tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(stores, tmp_path):
    with pytest.raises(NumericalError, match=r"not finite|loss is nan"):
        train(recipe(stores, "optimizer.lr=1e30", "train.steps=7", "sampler.name=random"), tmp_path / "run")
    assert Run.open(tmp_path / "run").result is None


def test_a_missing_store_is_said_before_training(stores, tmp_path):
    chosen = recipe(stores, f"evaluation=[{{store='{tmp_path / 'none'}'}}]")
    with pytest.raises(MissingError, match="none"):
        train(chosen, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_split_that_an_evaluation_describes_is_mined_at_the_end(stores, tmp_path):
    options = "options={query_split='val', gallery_split='train'}"
    chosen = recipe(stores, f"evaluation=[{{store='{stores['train']}', protocol='retrieval', {options}}}]")
    check_evaluations(chosen)
    done = train(chosen, tmp_path / "run", splits=splits_of)
    mined = {each["split"]: each["round"] for each in done.result["evaluation"]}
    assert set(mined) == {"val", "train"}
    found = MiningStore(tmp_path / "run" / "mining")
    assert {split: found.open(number).split for split, number in mined.items()} == {"val": "val", "train": "train"}
    wrong = recipe(
        stores, f"evaluation=[{{store='{stores['train']}', protocol='retrieval', options={{protocol='sop'}}}}]"
    )
    with pytest.raises(InputError, match="has no split 'test'"):
        check_evaluations(wrong)


def test_a_store_with_splits_needs_one_named(stores, tmp_path):
    chosen = load_recipe("hardnet", [f"data.store={stores['train']}"])
    with pytest.raises(InputError, match="train, val"):
        train(chosen, tmp_path / "run")


def test_the_published_weights_can_be_the_start(stores, tmp_path):
    first = train(recipe(stores), tmp_path / "first")
    file = first.path / "weights.safetensors"
    begun = recipe(stores, f"network.weights={file}", "train.steps=1", "optimizer.lr=1e-12", "optimizer.weight_decay=0")
    train(begun, tmp_path / "second")
    start, end = dict(load(file).named_parameters()), dict(load(tmp_path / "second").named_parameters())
    assert all(torch.allclose(start[name], end[name], atol=1e-9) for name in start)


def test_the_store_is_open_in_rows_of_the_split_only(train_store):
    assert isinstance(train_store, PatchStore)
    assert not set(train_store.label[train_store.rows("train")]) & set(train_store.label[train_store.rows("val")])
