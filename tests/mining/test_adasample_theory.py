"""AdaSample's derivation on a model small enough for its whole gradient, and its two limits, HardNet and Hardpos.

One class of K candidates for an anchor: the objective is (1/K) sum_i L_i^alpha, a pair is drawn with p_i and its
gradient weighted with w_i = alpha L_i^(alpha - 1) / (K p_i) (Eq. 9 and 10). All in float64.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mining_world import make_store

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.class_distances import OnlineDistances
from hardmine.mining.entries import Entries
from hardmine.mining.miners import Tuples
from hardmine.mining.samplers import PairSampler
from hardmine.mining.samplers.adasample import AdaSample, AdaSampleOptions, normalised_weights, probabilities
from hardmine.mining.samplers.random import RandomPairs
from hardmine.options import check
from hardmine.store.rounds import MiningStore
from hardmine.train.loop import train
from hardmine.train.losses import losses
from hardmine.train.recipe import load_recipe

K, INPUTS, DIM = 5, 4, 3
ALPHAS = [0.75, 1.0, 2.0, 5.5]


class World:
    """An anchor (row 0), its K candidates and one negative (the last row), seen through one linear layer."""

    def __init__(self, loss, seed=0, spread=0.8):
        generator = torch.Generator().manual_seed(seed)
        centre = torch.randn(INPUTS, generator=generator, dtype=torch.float64)
        noise = torch.randn(K + 2, INPUTS, generator=generator, dtype=torch.float64)
        self.x = centre + spread * noise
        self.weight = torch.randn(DIM, INPUTS, generator=generator, dtype=torch.float64).requires_grad_()
        self.loss_name = loss

    def descriptors(self):
        return torch.nn.functional.normalize(self.x @ self.weight.T, dim=1)

    def losses(self):
        """L_i of the K candidates, with gradient: of the library's own loss, or the squared distance alone."""
        f = self.descriptors()
        if self.loss_name == "square":
            return (f[0] - f[1:-1]).square().sum(1)
        kind = check(losses.get(self.loss_name), {}, "loss")
        found = []
        for i in range(1, K + 1):
            batch = Batch(f[[0, i, K + 1]], torch.tensor([0, 0, 1]), 1)
            one = torch.zeros(1, dtype=torch.int64)
            found.append(kind(batch, Tuples(one, one + 1, one + 2, one)).value)
        return torch.stack(found)

    def distance(self):
        f = self.descriptors().detach()
        return (f[0] - f[1:-1]).norm(dim=1)

    def gradients(self):
        """Gradient of each L_i with respect to the weights, (K, P), by K backward passes."""
        each = self.losses()
        found = [torch.autograd.grad(value, self.weight, retain_graph=True)[0].flatten() for value in each]
        return torch.stack(found)

    def objective_gradient(self, alpha):
        """Of (1/K) sum_i L_i^alpha, by one backward pass through the power."""
        (gradient,) = torch.autograd.grad((self.losses() ** alpha).mean(), self.weight)
        return gradient.flatten()


def exact_weights(loss, alpha, p):
    return alpha * loss ** (alpha - 1) / (K * p)


def distributions(world, alpha):
    d, loss = world.distance(), world.losses().detach()
    norm = world.gradients().norm(dim=1)
    found = {
        "uniform": torch.ones(K, dtype=torch.float64),
        "distance": d ** (2 * alpha - 1),
        "loss": loss ** (alpha - 1),
        "optimal": loss ** (alpha - 1) * norm,
        "arbitrary": torch.tensor([0.4, 0.05, 0.3, 0.05, 0.2], dtype=torch.float64),
    }
    return {name: p / p.sum() for name, p in found.items()}


@pytest.mark.parametrize("loss", ["square", "ht", "aht", "triplet-margin"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_with_the_exact_weights_any_p_gives_the_gradient_of_the_generalised_objective(loss, alpha):
    world = World(loss)
    values, gradients, whole = world.losses().detach(), world.gradients(), world.objective_gradient(alpha)
    assert (values > 0).all()
    assert whole.norm() > 1e-3
    for name, p in distributions(world, alpha).items():
        expected = (p * exact_weights(values, alpha, p)) @ gradients
        assert torch.allclose(expected, whole, rtol=1e-10, atol=0), name
    wrong = (p * exact_weights(values, alpha, p).mean()) @ gradients  # what the test would see without the weights
    assert (wrong - whole).norm() > 1e-3 * whole.norm()


@pytest.mark.parametrize("loss", ["square", "aht"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_p_in_proportion_to_the_weighted_gradient_norm_has_the_least_variance(loss, alpha):
    world = World(loss)
    values, gradients, whole = world.losses().detach(), world.gradients(), world.objective_gradient(alpha)

    def variance(p):
        w = exact_weights(values, alpha, p)
        return float((p * (w[:, None] * gradients - whole).square().sum(1)).sum())

    tested = distributions(world, alpha)
    optimal = tested.pop("optimal")
    best = variance(optimal)
    # Cauchy-Schwarz, attained: E |w g|^2 is the square of the mean of alpha L^(alpha - 1) |grad L|
    least = (alpha * values ** (alpha - 1) * gradients.norm(dim=1)).mean() ** 2 - whole.square().sum()
    assert best == pytest.approx(float(least), rel=1e-9)
    assert all(best < variance(p) for p in tested.values())
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        p = -torch.rand(K, generator=generator, dtype=torch.float64).log()
        assert best < variance(p / p.sum())
        nearby = optimal * (1 + 0.1 * torch.randn(K, generator=generator).double()).abs()
        assert best <= variance(nearby / nearby.sum()) * (1 + 1e-12)


def test_where_the_loss_is_the_squared_distance_p_by_distance_is_optimal_and_the_normaliser_makes_w_exact():
    """The paper's approximations, L = d^2 and |grad L| = 2 d (up to one factor for all pairs): Eq. 12 and 13."""
    alpha, d = 2.0, World("square").distance().numpy()
    p = probabilities(d[None], 2 * alpha - 1)[0]
    assert p == pytest.approx(d ** (2 * alpha - 1) / (d ** (2 * alpha - 1)).sum())
    exact = alpha * (d**2) ** (alpha - 1) / (K * p)
    ours = normalised_weights(d, p, 2 * alpha - 1, np.inf)
    assert ours / ours[0] == pytest.approx(exact / exact[0], rel=1e-12)
    assert exact * d == pytest.approx(np.full(K, (exact * d)[0]))  # inside one class, w is proportional to 1 / d


def sampler_of(world, **options):
    """The library's sampler over the anchor's class (its K + 1 entries, each in turn the anchor)."""
    entries = Entries(np.arange(K + 1), np.zeros(K + 1, np.int16), np.array([0, K + 1]))
    sampler = AdaSample(entries, check(AdaSampleOptions, options, "sampler"), pairs=1)
    f = world.descriptors().detach().numpy()
    sampler.distances = OnlineDistances(entries, lambda rows, views: f[rows])
    return sampler


@pytest.mark.parametrize("alpha", [0.75, 2.0, 5.5])
def test_draws_of_the_sampler_average_to_the_gradient_of_the_objective(alpha):
    """1,500 plans whose anchor is entry 0, with the exact w and the sampler's own p: each of the 12 coordinates of the
    mean within 4.5 standard errors of the exact gradient (chance of one outside: 1e-4)."""
    world = World("aht")
    values, gradients = world.losses().detach(), world.gradients()
    sampler, drawn, step = sampler_of(world, exponent=2 * alpha - 1), [], 0
    while len(drawn) < 1500:
        plan = sampler.plan(step)
        step += 1
        if plan.anchor_row[0] == 0:
            drawn.append(int(plan.positive_row[0]) - 1)
    p = torch.from_numpy(probabilities(world.distance().numpy()[None], 2 * alpha - 1)[0])
    samples = (exact_weights(values, alpha, p)[:, None] * gradients)[drawn]
    error = (samples.mean(0) - world.objective_gradient(alpha)) / (samples.std(0) / len(drawn) ** 0.5)
    assert error.abs().max() < 4.5
    assert samples.std(0).min() > 0
    unweighted = gradients[drawn]  # the bias is seen at this number of draws
    off = (unweighted.mean(0) - world.objective_gradient(1.0)) / (unweighted.std(0) / len(drawn) ** 0.5)
    assert off.abs().max() > 4.5


@pytest.mark.parametrize("weights", ["inverse-distance", "with-normaliser", "none"])
def test_plans_carry_the_weights_of_their_option(weights):
    rng = np.random.default_rng(3)
    sizes = [4, 3, 6, 5]
    entries = Entries(np.arange(18), np.zeros(18, np.int16), np.concatenate([[0], np.cumsum(sizes)]))
    x = rng.normal(size=(18, 5))
    uncapped = {} if weights == "none" else {"max_weight": np.inf}
    options = check(AdaSampleOptions, {"exponent": 3.0, "weights": weights, **uncapped}, "sampler")
    sampler = AdaSample(entries, options, pairs=4)
    sampler.distances = OnlineDistances(entries, lambda rows, views: x[rows])
    for step in range(20):
        plan = sampler.plan(step)
        expected = []
        for a, b, c in zip(plan.anchor_row, plan.positive_row, plan.label):
            own = [r for r in range(entries.offsets[c], entries.offsets[c + 1]) if r != a]
            d = {r: np.linalg.norm(x[a] - x[r]) for r in own}
            normaliser = sum(v**3 for v in d.values())
            expected.append({"inverse-distance": 1 / d[b], "with-normaliser": normaliser / d[b], "none": 1.0}[weights])
        expected = np.array(expected) / np.mean(expected)
        assert plan.weight == pytest.approx(expected, rel=1e-5)


def test_weights_with_the_normaliser_stay_finite_and_capped():
    d, p = np.array([1e-9, 0.01, 0.5, 1.0, 1.9]), np.array([1e-300, 1.0, 0.2, 0.9, 1e-12])
    for exponent in (0.5, 30.0, 1e4):
        for cap in (10.0, np.inf):
            w = normalised_weights(d, p, exponent, cap)
            assert np.isfinite(w).all()
            assert w.mean() == pytest.approx(1)
            assert cap == np.inf or w.max() <= cap * np.median(w) * (1 + 1e-12)


def test_lambda_0_plans_are_those_of_random_and_need_no_distances():
    entries = Entries(np.arange(9), np.zeros(9, np.int16), np.array([0, 3, 7, 9]))
    for options in ({"lam": 0.0}, {"exponent": 0.0}):
        zero = AdaSample(entries, check(AdaSampleOptions, options, "sampler"), pairs=3, seed=5, augment="dihedral")
        plain = RandomPairs(entries, pairs=3, seed=5, augment="dihedral")
        assert not zero.needs_distances
        for sampler in (zero, plain):
            sampler.draws_negatives = True
        for step in range(16):
            assert zero.plan(step) == plain.plan(step)


LIMITS = {
    "lambda 0": ("random", ["sampler.name=adasample", "sampler.lam=0.0"]),
    "exponent 0": ("random", ["sampler.name=adasample", "sampler.exponent=0.0", "sampler.weights=with-normaliser"]),
    "lambda 0, online": ("random", ["sampler.name=adasample", "sampler.lam=0.0", "sampler.descriptors=online"]),
    "lambda inf": ("hardpos", ["sampler.name=adasample", "sampler.lam=inf"]),
    "lambda inf, angle": ("hardpos", ["sampler.name=adasample", "sampler.lam=inf", "sampler.distance=angle"]),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_run_at_a_limit_of_lambda_is_to_the_bit_the_run_of_the_other_sampler(limit, tmp_path, monkeypatch):
    """Plans, losses, rounds and final weights: HardNet's random pairs at 0, Hardpos at infinity."""
    store = make_store(tmp_path / "store", sizes=(3, 4, 2, 5, 3, 4))
    common = [f"data.store={store.path}", "train.pairs=4", "train.steps=4", "train.mine_every=2", "train.log_every=1"]
    common += ["train.lag=1", "views.per_class=4", "train.augment=fliprot"]
    other, settings = LIMITS[limit]
    plain, plans = PairSampler.plan, []
    monkeypatch.setattr(PairSampler, "plan", lambda self, step: plans.append(plain(self, step)) or plans[-1])
    seen = {}
    for name, more in (("limit", settings), ("other", [f"sampler.name={other}"])):
        plans.clear()
        train(load_recipe("hardnet", [*common, *more]), tmp_path / name)
        lines = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        rounds = MiningStore(tmp_path / name / "mining").rounds() if (tmp_path / name / "mining").exists() else []
        seen[name] = {
            "plans": list(plans),
            "losses": [(line["step"], line["loss"], line["unweighted_loss"]) for line in lines if "loss" in line],
            "rounds": [(r.attrs["key_hash"], r.descriptors().tobytes()) for r in rounds],
            "weights": (tmp_path / name / "weights.safetensors").read_bytes(),
        }
    assert len(plans) == 4
    assert len(seen["other"]["rounds"]) == (2 if other == "hardpos" else 0)
    for what in seen["other"]:
        assert seen["limit"][what] == seen["other"][what], what


def test_the_options_of_the_register_are_reached_from_a_recipe(tmp_path):
    """A7 to A9: negatives, L_avg's start and momentum, the cap of the weights, the mode of the sampling pass, views."""
    store = make_store(tmp_path / "store", sizes=(3, 4, 2, 5, 3, 4))
    common = [f"data.store={store.path}", "train.pairs=4", "train.steps=2", "train.lag=1", "sampler.name=adasample"]
    weights = {"plain": None}
    variants = {
        "plain": [],
        "within": ["miner.negatives=within"],
        "all": ["miner.negatives=all", "miner.swap=false"],
        "initial": ["sampler.initial_loss=0.05"],
        "momentum": ["sampler.momentum=0.0"],
        "cap": ["sampler.max_weight=1.01"],
        "no cap": ["sampler.max_weight=inf"],
        "weights": ["sampler.weights=none"],
        "normaliser": ["sampler.weights=with-normaliser"],
        "online": ["sampler.descriptors=online"],
        "angle": ["sampler.distance=angle"],
        "ht": ["loss={name='ht', t=1.0}"],
        "aht": ["loss={name='aht', t=1.0}"],
        "rotations": ["views.per_class=6", "views.max_degrees=90.0", "views.seed=1"],
    }
    for name, settings in variants.items():
        train(load_recipe("hardnet", [*common, *settings]), tmp_path / name)
        weights[name] = (tmp_path / name / "weights.safetensors").read_bytes()
    same = {name for name in variants if name != "plain" and weights[name] == weights["plain"]}
    assert same <= {"no cap", "momentum"}  # no weight was capped; two steps are too few for the momentum to be seen


def test_lambda_inf_takes_the_farthest_whatever_the_distance():
    world = World("square")
    for distance in ("euclidean", "angle"):
        sampler = sampler_of(world, lam=np.inf, distance=distance)
        f = world.descriptors().detach()
        for step in range(12):
            plan = sampler.plan(step)
            a, b = int(plan.anchor_row[0]), int(plan.positive_row[0])
            assert b == int((f[: K + 1] - f[a]).norm(dim=1).argmax())
            assert plan.weight.tolist() == [1.0]


def test_the_exponent_grows_as_the_loss_falls_and_a_fixed_one_stays():
    world = World("square")
    adaptive, fixed = sampler_of(world, lam=10.0, momentum=0.5, initial_loss=2.0), sampler_of(world, exponent=4.0)
    assert adaptive.exponent(0) == 5
    for step in range(40):
        for sampler in (adaptive, fixed):
            sampler.plan(step)
            sampler.record(step, 0.5)
    assert adaptive.exponent(40) == pytest.approx(10 / 0.5, rel=1e-5)
    assert fixed.exponent(40) == 4
    with pytest.raises(InputError, match="not both"):
        sampler_of(world, exponent=4.0, lam=1.0)


def test_the_script_that_measures_the_bias_of_eq_13_runs():
    script = Path(__file__).parents[2] / "benchmarks" / "adasample_bias.py"
    done = subprocess.run([sys.executable, str(script), "--json"], capture_output=True, text=True, check=True)
    small = json.loads(done.stdout)["small model, L = d^2, exponent 3"]
    assert small["exact"]["bias"] < 1e-9
    assert small["1/d, normaliser"]["bias"] < 1e-9
    assert small["1/d"]["cosine"] < 0.999
