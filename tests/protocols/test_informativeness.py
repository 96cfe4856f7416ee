"""`analyse informativeness` against plain loops over pairs, and the weights that a run keeps for it."""

import csv
import json

import numpy as np
import pytest
import scipy.stats
import torch
from command import run as command
from phototour_world import write_phototour
from PIL import Image

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.mining.batch import Batch
from hardmine.mining.miners import Tuples
from hardmine.mining.samplers import PairSampler
from hardmine.options import check
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.pixels import prepare
from hardmine.pipeline.views import Views
from hardmine.protocols.informativeness import Pairs, pair_cotangents, pair_gradient_norms
from hardmine.protocols.informativeness_report import analyse_informativeness, pearson, steps, summary
from hardmine.protocols.inspect import inspect
from hardmine.store.patches import PatchStore
from hardmine.train.loop import train
from hardmine.train.losses import losses
from hardmine.train.networks import build
from hardmine.train.recipe import load_recipe
from hardmine.train.runs import Run, load

NAMES = {f"informativeness.{kind}" for kind in ("json", "csv", "npz", "png")}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    write_phototour(root / "raw", classes=12)
    ingest("phototour", root / "raw", root / "patches")
    return root / "patches"


def recipe(store, *more, base="adasample"):
    options = [f"data.store={store}", "train.pairs=6", "train.steps=4", "train.mine_every=2", "train.keep_every=2"]
    return load_recipe(base, [*options, "train.lag=1", "train.checkpoint_every=3", "train.log_every=1", *more])


@pytest.fixture(scope="module")
def trained(store, tmp_path_factory):
    """A finished run with views and flips, the plans it trained on, and the options that made it."""
    path, plain, plans = tmp_path_factory.mktemp("run") / "ada", PairSampler.plan, {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PairSampler, "plan", lambda self, step: plans.setdefault(step, plain(self, step)))
        train(recipe(store, "views.per_class=5", "train.augment=dihedral", "sampler.lam=3.0"), path)
    return path, plans


def parameter_norm(value, network):
    gradients = torch.autograd.grad(value, list(network.parameters()))
    return float(torch.cat([g.flatten() for g in gradients]).norm())


@pytest.mark.parametrize("name", ["l2net", "tfeat"])
def test_gradient_norms_equal_a_loop_of_backward_passes(name):
    torch.manual_seed(0)
    network = build(name, seed=1)
    network(torch.rand(8, 1, 32, 32))  # running statistics of their own
    network.eval()
    pixels, along = torch.rand(5, 2, 1, 32, 32), torch.randn(5, 2, network.dim)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    expected = [parameter_norm((network(two) * u).sum(), network) for two, u in zip(pixels, along)]
    for chunk in (2, 16):
        assert pair_gradient_norms(network, pixels, along, chunk).tolist() == pytest.approx(expected, rel=1e-4)
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in before.items())


@pytest.mark.parametrize("name", ["triplet-margin", "ht", "aht", "n-pair", "multi-similarity", "lifted-log"])
def test_a_pair_moves_alone_and_everything_else_stays(name):
    torch.manual_seed(0)
    n, x = 5, torch.nn.functional.normalize(torch.randn(10, 4, dtype=torch.float64), dim=1)
    labels = torch.arange(n).repeat(2)
    item = torch.arange(n)
    # pair 1 starts at its positive, pair 3 has no negative, and row 0 serves two pairs
    tuples = Tuples(
        torch.tensor([0, 6, 2, 4]), torch.tensor([5, 1, 7, 9]), torch.tensor([3, 0, 0, 8]), item[[0, 1, 2, 4]]
    )
    loss = check(losses.get(name), {}, "loss")
    tuples = tuples if loss.needs_tuples else None
    values, cotangents = pair_cotangents(loss, Batch.of_pairs(x, labels), tuples)
    assert values.tolist() == pytest.approx(loss(Batch.of_pairs(x, labels), tuples).per_item.tolist())
    for i in range(n):
        own = x[[i, n + i]].requires_grad_()
        rows = [own[0] if r == i else own[1] if r == n + i else x[r].detach() for r in range(2 * n)]
        value = n * loss(Batch.of_pairs(torch.stack(rows), labels), tuples, torch.eye(n)[i]).value
        (expected,) = torch.autograd.grad(value, own, allow_unused=True)
        assert torch.allclose(cotangents[i], expected, rtol=1e-9, atol=1e-12)
    assert cotangents[0].abs().max() > 0
    assert tuples is None or not cotangents[3].any()


def test_the_whole_measurement_equals_a_slow_loop_over_pairs(store, trained, tmp_path):
    """Distances, losses and gradient norms of step 2, pair by pair: the hardest negative by hand, plain backward."""
    path, plans = trained
    analyse_informativeness(path, tmp_path / "out", [2], options={"batches": 1, "chunk": 4})
    found = np.load(tmp_path / "out" / "informativeness.npz")
    plan, network = plans[2], load(Run.open(path).kept()[2])
    assert found["anchor_row"].tolist() == plan.anchor_row.tolist()  # the run's own pairs, to the view
    assert found["positive_row"].tolist() == plan.positive_row.tolist()
    assert found["positive_view"].tolist() == plan.positive_view.tolist()
    assert found["label"].tolist() == plan.label.tolist()
    assert set(found["step"]) == {2}
    n, patches = plan.pairs, torch.from_numpy(PatchStore.open(store).gather(plan.rows))
    angle = torch.from_numpy(Views(per_class=5).angles(plan.rows, plan.views))
    pixels = prepare(patches, 32, angle=angle, dihedral=torch.from_numpy(np.tile(plan.dihedral, 2)))
    with torch.no_grad():
        fixed = network(pixels)
    for i in range(n):
        candidates = [
            (float((fixed[s] - fixed[o]).norm()), k, s, o)
            for k in range(2)
            for j in range(n)
            if j != i
            for s, o in [((i, n + j), (n + i, j))[k]]
        ]
        _, _, side, negative = min(candidates)
        own = network(pixels[[i, n + i]])
        start = own[0] if side == i else own[1]
        distance = [
            torch.sqrt((start - other).square().sum() + 1e-6) for other in (own[1 - int(side != i)], fixed[negative])
        ]
        loss = torch.relu(1 + distance[0] - distance[1])
        assert float((own[0] - own[1]).detach().norm()) == pytest.approx(found["distance"][i], rel=1e-4)
        assert float(loss.detach()) == pytest.approx(found["loss"][i], rel=1e-4, abs=1e-6)
        assert parameter_norm(loss, network) == pytest.approx(found["gradient_norm"][i], rel=1e-3, abs=1e-6)
    assert (found["gradient_norm"] > 0).any()


def test_the_report_is_written_and_agrees_with_itself(trained, tmp_path):
    path, _ = trained
    facts = analyse_informativeness(path, tmp_path / "out", options={"batches": 2})
    assert {p.name for p in (tmp_path / "out").iterdir()} == NAMES
    assert json.loads((tmp_path / "out" / "informativeness.json").read_text()) == facts
    assert [point["step"] for point in facts["points"]] == [0, 2, 4]
    assert facts["messages"] == []
    arrays = np.load(tmp_path / "out" / "informativeness.npz")
    with (tmp_path / "out" / "informativeness.csv").open() as file:
        lines = list(csv.DictReader(file))
    for point, line in zip(facts["points"], lines, strict=True):
        own = arrays["step"] == point["step"]
        assert own.sum() == point["pairs"] == 12
        r = scipy.stats.pearsonr(arrays["distance"][own], arrays["gradient_norm"][own]).statistic
        assert point["correlation"] == pytest.approx(r, abs=1e-6)
        assert float(line["correlation"]) == point["correlation"]
        assert point["flat"] == int((arrays["gradient_norm"][own] == 0).sum())
    with Image.open(tmp_path / "out" / "informativeness.png") as picture:
        assert picture.size[0] > picture.size[1]
    again = analyse_informativeness(path, tmp_path / "again", options={"batches": 2})
    assert again == facts
    with pytest.raises(InputError, match="has no weights of step 3; it has those of 0, 2, 4"):
        analyse_informativeness(path, tmp_path / "out", [3])


def test_random_positives_are_the_same_pairs_at_every_step(trained, tmp_path):
    path, _ = trained
    facts = analyse_informativeness(path, tmp_path / "out", options={"positives": "random", "batches": 2})
    arrays = np.load(tmp_path / "out" / "informativeness.npz")
    first, last = arrays["step"] == 0, arrays["step"] == 4
    for name in ("anchor_row", "positive_row", "positive_view"):
        assert arrays[name][first].tolist() == arrays[name][last].tolist()
    assert (arrays["distance"][first] != arrays["distance"][last]).any()
    assert facts["sampler"] == "random"


def test_a_run_without_kept_weights_is_one_point_and_says_so(store, tmp_path):
    train(recipe(store, "train.keep_every=0"), tmp_path / "run")
    facts = analyse_informativeness(tmp_path / "run", tmp_path / "out", options={"batches": 1})
    assert [point["step"] for point in facts["points"]] == [4]
    assert "train.keep_every=N" in facts["messages"][0]
    with pytest.raises(MissingError, match="is no run"):
        analyse_informativeness(tmp_path / "none", tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out is a folder"):
        analyse_informativeness(tmp_path / "run", tmp_path / "file")
    with pytest.raises(UnknownNameError, match="Did you mean 'batches'"):
        analyse_informativeness(tmp_path / "run", tmp_path / "out", options={"batch": 1})


@pytest.mark.parametrize(
    "more",
    [
        ["sampler={name='neighbours', group=3}"],
        ["sampler={name='hardpos'}"],
        ["sampler={name='random'}", "miner={name='drawn'}", "regularisers={gor={}}"],
    ],
)
def test_any_sampler_and_miner_of_a_recipe_is_measured(more, store, tmp_path):
    train(recipe(store, "train.steps=2", *more), tmp_path / "run")
    facts = analyse_informativeness(tmp_path / "run", tmp_path / "out", options={"batches": 1}, store=store)
    assert [point["pairs"] for point in facts["points"]] == [6, 6]


def test_a_loss_on_whole_batches_is_measured(store, tmp_path):
    (tmp_path / "n-pair.toml").write_text("[data]\nstore = ''\n[loss]\nname = 'n-pair'\n[network]\nname = 'l2net'\n")
    train(recipe(store, "train.steps=2", "optimizer.lr=0.1", base=tmp_path / "n-pair.toml"), tmp_path / "run")
    facts = analyse_informativeness(tmp_path / "run", tmp_path / "out", options={"batches": 1})
    assert all(point["mean_gradient_norm"] > 0 for point in facts["points"])


def test_a_loss_that_learns_is_refused(store, tmp_path):
    more = ["loss={name='margin', beta_lr=0.01}", "train.pairs=8", "train.steps=1", "data.exclude_overlap=0"]
    train(load_recipe("hardnet", [f"data.store={store}", *more]), tmp_path / "run")
    with pytest.raises(InputError, match="loss 'margin' has learned something of its own"):
        analyse_informativeness(tmp_path / "run", tmp_path / "out")


class Stop(Exception):
    pass


def test_kept_weights_are_exact_and_no_part_of_what_a_run_is(store, trained, tmp_path):
    path, _ = trained
    straight = Run.open(path)
    more = ("views.per_class=5", "train.augment=dihedral", "sampler.lam=3.0")

    def stop(done, total, figures):
        if done == 3:
            raise Stop

    other = recipe(store, *more, "train.keep_every=3")
    assert other.digest() == straight.recipe.digest()
    with pytest.raises(Stop):
        train(other, tmp_path / "run", progress=stop)
    assert list(Run.open(tmp_path / "run").kept()) == [0]
    train(recipe(store, *more), tmp_path / "run")  # goes on from step 0, and keeps others now
    assert list(Run.open(tmp_path / "run").kept()) == [0, 2, 4]
    for step, file in Run.open(tmp_path / "run").kept().items():
        assert file.read_bytes() == straight.kept()[step].read_bytes()
    network = load(straight.kept()[4])
    final = load(path)
    assert all(torch.equal(network.state_dict()[k], v) for k, v in final.state_dict().items())
    assert inspect(path)["run"]["weights kept of steps"] == "0, 2, 4"


def test_the_correlation_of_what_is_constant_is_not_defined():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40)).astype(np.float32)
    assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic, abs=1e-6)
    assert pearson(x, np.zeros(40)) is None
    assert pearson(x[:1], y[:1]) is None
    none = np.zeros(0, np.float32)
    empty = summary(Pairs(none, none, none, none, none, none, none, none))
    assert (empty["pairs"], empty["correlation"], empty["mean_distance"]) == (0, None, None)


def test_the_command_prints_a_table_or_one_json_object(trained, tmp_path):
    path, _ = trained
    words = ["analyse", "informativeness", path, "--out", tmp_path / "out", "--set", "batches=1", "--device", "cpu"]
    facts = json.loads(command(*words, "--checkpoints", "0,4", "--json"))
    assert [point["step"] for point in facts["points"]] == [0, 4]
    assert "correlation" in command(*words, "--checkpoints", "4")
    assert "0,50,100" in command(*words, "--checkpoints", "four", code=2)
    assert steps("") is None
