"""Image training on small folders of shapes: learns, resumes to the bit, never touches a held-out item."""

import json

import numpy as np
import pytest
import torch
from polygon_world import polygon_store

from hardmine.errors import InputError
from hardmine.mining.mine import mine
from hardmine.mining.miners.pads import PadsMiner
from hardmine.mining.pads.files import load_distribution
from hardmine.options import check
from hardmine.protocols.evaluate import score
from hardmine.protocols.pads_report import analyse_distribution
from hardmine.store.patches import PatchStore
from hardmine.train.checkpoint import last
from hardmine.train.feedback import Feedback
from hardmine.train.loop import train
from hardmine.train.recipe import Recipe
from hardmine.train.runs import Run, load
from hardmine.train.step import Step

CLASSES, EACH = 12, 8


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Coloured polygons on noise, in images of several sizes; a class is a polygon."""
    return polygon_store(tmp_path_factory.mktemp("images"), CLASSES, EACH, sides=(30, 60))


def recipe(store, **changes):
    tree = {
        "data": {"store": str(store), "split": "train", "exclude_overlap": 0.0},
        "network": {"name": "convnet", "side": 20, "resize": 22, "channels": 3, "width": 8, "blocks": 2, "dim": 16},
        "augment": {"crop": "random", "shift": 1},
        "sampler": {"name": "class-balanced", "classes": 6, "per_class": 3},
        "miner": {"name": "semi-hard"},
        "loss": {"name": "triplet"},
        "optimizer": {"name": "adam", "lr": 3e-3, "weight_decay": 4e-4, "head_lr": 1e-2},
        "schedule": {"name": "constant"},
        "train": {"steps": 12, "mine_every": 6, "checkpoint_every": 4, "log_every": 2, "lag": 3},
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            tree.setdefault(section, {})[key] = value
        elif value is None:
            tree.pop(section, None)
        else:
            tree[section] = value
    return check(Recipe, tree, "the test's recipe")


PADS = {
    "miner": {"name": "pads"},
    "loss": {"name": "margin"},
    "policy": {"every": 3, "split": "val", "history": 4, "averages": (2,)},
    "sampler": {"name": "pads-classes", "classes": 6, "per_class": 3, "group": 3, "candidates": 6},
}

DYNAMIC = {
    "miner": None,
    "loss": {"name": "multi-similarity", "select": True, "dynamic": True},
    "sampler": {"name": "class-balanced", "classes": 5, "per_class": 4, "small": "repeat", "draw": "pass"},
    "train__steps": 11,
    "train__log_every": 1,
    "train__checkpoint_every": 3,
}
PROXIES = {"miner": None, "loss": {"name": "pml:ProxyAnchorLoss", "alpha": 16, "weight_lr": 0.1}}
GOR = {
    "miner": None,
    "loss": {"name": "contrastive", "negatives": "none", "eps_pos": 0.2},
    "regularisers": {"gor": {"negatives": "random"}, "decorrelation": {"weight": 0.1}},
}
REDRAW = {
    "miner": {"name": "pads"},
    "policy": {"every": 3, "split": "val", "history": 4, "averages": (2,), "redraw_every": 5},
}
CHANGES = {"semi-hard": {}, "pads": PADS, "gor": GOR, "redraw": REDRAW, "proxies": PROXIES}


def weights(run):
    return (run / "weights.safetensors").read_bytes()


def test_descriptors_get_better(store, tmp_path):
    opened = PatchStore.open(store)
    rows = opened.rows("val")
    labels = opened.label[rows]

    def right(network):
        round = mine(opened, tmp_path / "mining", network, split="val", derive=("knn",), neighbours=1).round
        assert np.array_equal(round.entry_row[round.items], rows)
        return float((opened.label[round.knn()[0][:, 0]] == labels).mean())

    wanted = recipe(store, train__steps=60, train__mine_every=60)
    before = load(
        train(recipe(store, train__steps=1, optimizer__lr=1e-9, optimizer__head_lr=None), tmp_path / "no").path
    )
    after = load(train(wanted, tmp_path / "run").path)
    assert right(after) > right(before) + 0.1


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_a_resumed_run_ends_with_the_same_bytes(store, tmp_path, kind):
    wanted = recipe(store, **CHANGES[kind])
    train(wanted, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(step, steps, figures):
        if step >= 6:
            raise Stop

    with pytest.raises(Stop):
        train(wanted, tmp_path / "parts", progress=stop)
    assert last(tmp_path / "parts" / "checkpoints").step == 4
    resumed = train(wanted, tmp_path / "parts")
    assert resumed.trained == 8
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    if kind == "gor":
        moments = [line["gor/m2"] for line in log if "gor/m2" in line]
        assert len(moments) == 6
        assert len(set(moments)) == 6
    if kind == "pads":
        asked = [line["step"] for line in log if "policy/reward" in line]
        assert asked == [4, 7, 10]
        final = last(tmp_path / "whole" / "checkpoints")
        again = last(tmp_path / "parts" / "checkpoints")
        for part in ("policy", "loss", "optimizer"):
            assert (final.path / f"{part}.safetensors").read_bytes() == (
                again.path / f"{part}.safetensors"
            ).read_bytes()
        assert final.tensors("loss")["beta"].shape == (CLASSES,)
        assert final.tensors("loss")["beta"].std() > 0  # it was learned
    if kind == "proxies":
        saved = [last(tmp_path / run / "checkpoints").tensors("loss")["proxies"] for run in ("whole", "parts")]
        assert torch.equal(*saved)
        assert saved[0].shape == (CLASSES, 16)


def test_the_distribution_of_a_run_is_drawn_and_its_policy_starts_another(store, tmp_path):
    run = train(recipe(store, **PADS), tmp_path / "run").path
    found = analyse_distribution(run, tmp_path / "out")
    assert found["calls"] == 3
    assert sum(found["rewards"].values()) == 3
    assert 0 < found["share of the time"] < 1
    assert all((tmp_path / "out" / name).stat().st_size > 100 for name in ("distribution.png", "history.npz"))
    policy, start = str(tmp_path / "out" / "policy.safetensors"), str(tmp_path / "out" / "distribution.safetensors")
    assert not np.array_equal(load_distribution(start).p, PadsMiner().distribution.p)
    changes = {**PADS, "policy": {**PADS["policy"], "policy": policy, "learn": False}}
    other = recipe(store, **changes, miner__saved=start)
    train(other, tmp_path / "other")
    assert weights(tmp_path / "other") != weights(tmp_path / "run")
    saved = last(tmp_path / "other" / "checkpoints").tensors("policy")
    frozen = last(run / "checkpoints").tensors("policy")
    kept = [name for name in saved if name.startswith("learner.") and "policy" in name and "old" not in name]
    assert kept
    assert all(torch.equal(saved[name], frozen[name]) for name in kept)  # it was not trained on
    with pytest.raises(InputError, match="nothing adapted a distribution"):
        analyse_distribution(train(recipe(store, train__steps=2), tmp_path / "plain").path, tmp_path / "no")


def test_loader_workers_do_not_change_the_weights(store, tmp_path):
    train(recipe(store, train__steps=4, train__mine_every=4), tmp_path / "none")
    train(recipe(store, train__steps=4, train__mine_every=4, data__loader_workers=1), tmp_path / "one")
    assert weights(tmp_path / "none") == weights(tmp_path / "one")


def test_pairs_of_images_train_from_a_round(store, tmp_path):
    pairs = {"sampler": {"name": "adasample"}, "loss": {"name": "triplet-margin"}, "miner": None, "train__pairs": 6}
    result = train(recipe(store, **pairs), tmp_path / "run")
    assert result.trained == 12
    assert Run.open(result.path).result["steps"] == 12


def test_a_run_given_in_epochs_of_class_passes(store, tmp_path):
    epochs = {"train": {"epochs": 3, "steps_per_epoch": 2, "log_every": 1}}
    done = train(recipe(store, **{**{k: v for k, v in DYNAMIC.items() if "__" not in k}, **epochs}), tmp_path / "run")
    assert done.trained == 6
    assert done.result["dynamic"]["epochs"] == 3
    assert [line["loss/omega"] for line in Run.open(done.path).log()] == pytest.approx(
        [2 / 3, 2 / 3, 4 / 3, 4 / 3, 2, 2]
    )
    assert Run.open(done.path).log()[-1]["pass_coverage"] == 10 / 12


def test_no_batch_holds_a_held_out_item(store, tmp_path):
    from hardmine.mining.entries import list_entries
    from hardmine.mining.samplers import samplers

    opened = PatchStore.open(store)
    held_out = set(opened.rows("val").tolist())
    entries = list_entries(opened, "train", None)
    sampler = samplers.get("class-balanced")(
        entries, check(samplers.get("class-balanced").Options, {"classes": 6, "per_class": 3}, "")
    )
    assert not held_out & {row for step in range(200) for row in sampler.plan(step).rows.tolist()}


def test_held_out_items_are_drawn_anew_and_never_trained_on(store, tmp_path, monkeypatch):
    trained, rewarded = [], []
    real_step, real_ask = Step.__call__, Feedback.ask

    def step(self, pixels, plan, factor):
        trained.append((plan.step, set(plan.rows.tolist())))
        return real_step(self, pixels, plan, factor)

    def ask(self, step, describe):
        rewarded.append((step, self.rows.copy(), self.labels.copy()))
        return real_ask(self, step, describe)

    monkeypatch.setattr(Step, "__call__", step)
    monkeypatch.setattr(Feedback, "ask", ask)
    train(recipe(store, **REDRAW), tmp_path / "run")
    opened = PatchStore.open(store)
    assert [step for step, _, _ in rewarded] == [4, 7, 10]
    held = {step: set(rows.tolist()) for step, rows, _ in rewarded}
    assert held[4] == set(opened.rows("val").tolist())
    assert held[7] == held[10] != held[4]  # drawn after 5 steps, and after 10
    for step, rows, labels in rewarded:
        assert (opened.label[rows] == labels).all()
        assert (np.bincount(labels) == 2).all()
        for before, batch in trained:
            assert before // 5 != (step - 1) // 5 or not batch & held[step]
    later = set().union(*(batch for before, batch in trained if 5 <= before < 10))
    assert later & held[4]  # what was held out is trained on


def test_a_redraw_changes_nothing_before_its_first_step(store, tmp_path):
    never = {**REDRAW, "policy": {**REDRAW["policy"], "redraw_every": 50}}
    without = {**REDRAW, "policy": {k: v for k, v in REDRAW["policy"].items() if k != "redraw_every"}}
    for name, changes in (("never", never), ("without", without), ("often", REDRAW)):
        train(recipe(store, **changes), tmp_path / name)
    assert weights(tmp_path / "never") == weights(tmp_path / "without") != weights(tmp_path / "often")
    assert recipe(store, **never).digest() != recipe(store, **without).digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({**PADS, "policy": {**PADS["policy"], "redraw_every": 3}}, "not with 'pads-classes'"),
        ({**REDRAW, "validation": {"store": "STORE", "split": "val", "metric": None}}, "is measured on as well"),
        ({"views": {"per_class": 4}}, "rotated views are made of grey patches only"),
        ({"train__pairs": 4}, "gives single items"),
        ({"train__augment": "fliprot"}, "leave train.pairs and train.augment out"),
        ({"train": {"epochs": 2, "pairs_per_epoch": 100}}, "epochs by train.steps_per_epoch"),
        (
            {"sampler": {**DYNAMIC["sampler"]}, "train": {"epochs": 2, "steps_per_epoch": 3}},
            "steps_per_epoch is 3, and a pass over this split's classes has 2 batches",
        ),
        ({"network": {"name": "l2net"}}, "images of several sizes"),
        ({"policy": {}}, 'steers the miner "pads"'),
        ({**PADS, "policy": {"split": "train"}}, "must be measured on held-out items"),
        ({**PADS, "miner": {"name": "semi-hard"}, "policy": None}, "draws by the distribution of the miner"),
        ({"loss": {"name": "triplet-margin"}, "miner": {"name": "hardest-in-batch"}}, "needs a batch of pairs"),
    ],
)
def test_what_does_not_fit_is_said(store, tmp_path, changes, message):
    if "validation" in changes:
        changes = {**changes, "validation": {**changes["validation"], "store": str(store)}}
    with pytest.raises(InputError, match=message):
        train(recipe(store, **changes), tmp_path / "run", score)


@pytest.mark.parametrize("name", ["binomial-deviance", "lifted-log", "multi-similarity", "similarity-triplet"])
def test_the_epoch_reaches_a_dynamic_loss_and_a_resumed_run_has_the_same_bytes(store, tmp_path, name):
    loss = {**DYNAMIC["loss"], "name": name}
    wanted = recipe(store, **{**DYNAMIC, "loss": loss, "optimizer__lr": 1e-5, "optimizer__head_lr": 1e-4})
    train(wanted, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(step, steps, figures):
        if step == 5:
            raise Stop

    with pytest.raises(Stop):
        train(wanted, tmp_path / "parts", progress=stop)
    resumed = train(wanted, tmp_path / "parts")
    assert resumed.trained == 8
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    logs = [[line for line in Run.open(tmp_path / part).log() if "loss" in line] for part in ("whole", "parts")]
    for log in logs:  # 12 classes are 2 batches of 5, so 11 steps are 6 epochs
        assert [line["loss/omega"] for line in log] == [2 * (step // 2 + 1) / 6 for step in range(11)]
    assert [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]
    stated = {"epoch": "class-pass", "epochs": 6, "first_epoch": 1, "last_omega": 2.0}
    assert resumed.result["dynamic"] == stated
    plain = train(recipe(store, **{**DYNAMIC, "loss": {"name": name}, "train__steps": 1}), tmp_path / "plain")
    assert "dynamic" not in plain.result
