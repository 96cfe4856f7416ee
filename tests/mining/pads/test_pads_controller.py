"""The policy at work: against a slow version of the whole update, its schedule, and going on after a stop."""

import itertools
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from hardmine.errors import InputError, NumericalError, StoreError
from hardmine.mining.pads.controller import Pads
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.files import load_distribution, load_policy
from hardmine.mining.pads.options import PolicyOptions
from hardmine.mining.pads.state import Metrics
from hardmine.mining.pads.support import Support

SMALL = {"every": 3, "history": 3, "averages": (2, 4), "recall_at": (1, 2), "hidden": 7, "old_policy_every": 3}
BINS = 5


def make(total_steps=100, seed=0, double=False, **more):
    pads = Pads(
        PolicyOptions(**SMALL | more),
        Distribution.starting(Support(n_support=BINS + 1), "normal_low"),
        total_steps=total_steps,
        seed=seed,
    )
    if double:
        pads.learner.policy.double(), pads.learner.old.double()
    return pads


def metrics(call):
    rng = np.random.default_rng([9, call // 2 if call % 5 == 1 else call])  # now and then the same again: reward 0
    return Metrics(tuple(rng.random(2)), *rng.random(3))


class Slow:
    """PADS' update, one number after the other."""

    def __init__(self, pads):
        self.o = pads.options
        self.w = {name: p.detach().numpy().copy() for name, p in pads.learner.policy.named_parameters()}
        self.old = {name: value.copy() for name, value in self.w.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.q, self.generator = list(pads.distribution.q), torch.Generator().manual_seed(0)
        self.vectors, self.calls, self.updates, self.ema, self.rewards = [], 0, 0, None, []

    def forward(self, w, x):
        h1 = np.array([max(0.0, b + sum(row * x)) for row, b in zip(w["trunk.0.weight"], w["trunk.0.bias"])])
        h2 = np.array([max(0.0, b + sum(row * h1)) for row, b in zip(w["trunk.2.weight"], w["trunk.2.bias"])])
        z = [b + sum(row * h2) for row, b in zip(w["action.weight"], w["action.bias"])]
        pi = np.zeros((3, BINS))
        for k in range(BINS):
            e = [math.exp(z[a * BINS + k]) for a in range(3)]
            for a in range(3):
                pi[a, k] = e[a] / sum(e)
        value = w["value.bias"][0] + sum(w["value.weight"][0] * h2) if "value.weight" in w else 0.0
        return h1, h2, pi, value

    def learn(self, x, action, r, e, following):
        h1, h2, pi, value = self.forward(self.w, x)
        td = r + 0.99 * self.forward(self.w, following)[3]
        if self.o.baseline == "a2c":
            advantage = td - value
        else:
            advantage = r - (self.ema or 0.0)
            self.ema = r if self.ema is None else 0.95 * self.ema + 0.05 * r
        pi_old = self.forward(self.old, x)[2]
        dz = np.zeros(3 * BINS)
        for k in range(BINS):
            scale = -advantage / BINS
            if self.o.method == "ppo":
                ratio = pi[action[k], k] / pi_old[action[k], k]
                held = (advantage > 0 and ratio > 1.2) or (advantage < 0 and ratio < 0.8)
                scale = 0.0 if held else scale * ratio
            for a in range(3):
                dz[a * BINS + k] = scale * ((a == action[k]) - pi[a, k])
        dh2 = sum(d * row for d, row in zip(dz, self.w["action.weight"]))
        g = {"action.weight": np.outer(dz, h2), "action.bias": dz}
        if self.o.baseline == "a2c":
            dv = 0.5 * 2 * (value - (e if self.o.value_target == "metric" else td))
            g |= {"value.weight": dv * h2[None], "value.bias": np.array([dv])}
            dh2 = dh2 + dv * self.w["value.weight"][0]
        dh2 = dh2 * (h2 > 0)
        dh1 = sum(d * row for d, row in zip(dh2, self.w["trunk.2.weight"])) * (h1 > 0)
        g |= {"trunk.2.weight": np.outer(dh2, h1), "trunk.2.bias": dh2}
        g |= {"trunk.0.weight": np.outer(dh1, x), "trunk.0.bias": dh1}
        self.updates += 1
        for name, gradient in g.items():  # Adam, learning rate 0.01
            self.m[name] = 0.9 * self.m[name] + 0.1 * gradient
            self.v[name] = 0.999 * self.v[name] + 0.001 * gradient**2
            m, v = self.m[name] / (1 - 0.9**self.updates), self.v[name] / (1 - 0.999**self.updates)
            self.w[name] = self.w[name] - 0.01 * m / (np.sqrt(v) + 1e-8)

    def observe(self, now, progress):
        self.vectors.append([*now.recall, now.intra, now.inter, now.nmi])
        x = [value for vector in ([self.vectors[0]] * 2 + self.vectors)[-3:] for value in vector]
        for length in (2, 4):
            last = self.vectors[-length:]
            x += [sum(column) / len(last) for column in zip(*last)]
        x = np.array([*x, *(weight / sum(self.q) for weight in self.q), progress])
        e = (now.recall[0] + now.nmi) / 2
        if self.calls > 0:
            r = 1 if e > self.e else -1 if e < self.e else 0
            self.rewards.append(r)
            self.learn(self.x, self.action, r, e, x)
            if self.calls % self.o.old_policy_every == 0 and self.calls > 1:
                self.old = {name: value.copy() for name, value in self.w.items()}
        pi = self.forward(self.w, x)[2]
        self.action = []
        for k, u in enumerate(torch.rand(BINS, generator=self.generator, dtype=torch.float64).tolist()):
            sums = np.cumsum(pi[:, k])
            self.action.append(next(a for a in range(3) if sums[a] > u * sums[2]))
        self.q = [min(max(q * self.o.actions[a], 1e-25), 1e25) for q, a in zip(self.q, self.action)]
        self.x, self.e = x, e
        self.calls += 1
        return self.q


@pytest.mark.parametrize(
    ("method", "baseline", "target"),
    [("ppo", "a2c", "metric"), ("ppo", "a2c", "td"), ("ppo", "ema", "metric"), ("reinforce", "a2c", "metric")],
)
def test_equals_the_slow_update(method, baseline, target):
    pads = make(double=True, method=method, baseline=baseline, value_target=target)
    slow = Slow(pads)
    for call in range(14):
        step = 4 + 3 * call
        distribution = pads.observe(step, metrics(call))
        assert distribution.q == pytest.approx(slow.observe(metrics(call), step / 100), rel=1e-6)
        for module, weights in ((pads.learner.policy, slow.w), (pads.learner.old, slow.old)):
            for name, parameter in module.named_parameters():
                assert parameter.detach().numpy() == pytest.approx(weights[name], abs=1e-8)
    assert set(slow.rewards) == {-1, 0, 1}
    assert pads.history.reward.tolist() == [0, 0, *slow.rewards]
    assert pads.history.step.tolist() == [0, *range(4, 44, 3)]


@pytest.mark.parametrize(("period", "renewed"), [(5, [5, 10, 15]), (3, [3, 6, 9, 12, 15]), (1, list(range(2, 17)))])
def test_the_old_policy_is_renewed_on_schedule(period, renewed):
    pads = make(old_policy_every=period)
    found, before = [], pads.learner.old.action.weight.clone()
    for call in range(17):
        pads.observe(4 + 3 * call, metrics(call))
        if not torch.equal(pads.learner.old.action.weight, before):
            found.append(call)
            before = pads.learner.old.action.weight.clone()
            assert torch.equal(before, pads.learner.policy.action.weight)
    assert found == renewed


def test_the_first_call_only_acts():
    pads = make()
    weights = {name: value.clone() for name, value in pads.learner.policy.state_dict().items()}
    first = pads.observe(4, metrics(0))
    assert all(torch.equal(value, weights[name]) for name, value in pads.learner.policy.state_dict().items())
    assert set(np.array(first.q) / np.array(Distribution.starting(first.support, "normal_low").q)) <= {0.8, 1.0, 1.25}
    pads.observe(7, metrics(1))
    assert not torch.equal(pads.learner.policy.action.weight, weights["action.weight"])


@pytest.mark.parametrize(
    ("every", "delay", "calls"), [(30, 0, [31, 61, 91, 121]), (60, 0, [61, 121]), (30, 25, [56, 86, 116])]
)
def test_calls_come_on_schedule(every, delay, calls):
    pads = make(every=every, delay=delay)
    counter, by_counter = 0, []
    for step in range(1, 130 - delay):  # the released program's counter
        if counter == every:
            by_counter.append(step + delay)
            counter = 0
        counter += 1
    assert [step for step in range(1, 130) if pads.due(step)] == calls == by_counter


def test_a_call_that_is_not_due_or_was_made_is_refused():
    pads = make()
    with pytest.raises(StoreError, match="called after step 5; it is called every 3 steps from step 4 on"):
        pads.observe(5, metrics(0))
    pads.observe(7, metrics(0))
    for step in (4, 7):
        with pytest.raises(StoreError, match="was last after step 7"):
            pads.observe(step, metrics(0))


def test_metrics_that_are_not_finite_change_nothing():
    pads = make()
    pads.observe(4, metrics(0))
    before = pads.state_dict()
    for bad in (Metrics((math.nan, 0.5)), Metrics((0.5, 0.5), intra=math.inf)):
        with pytest.raises(NumericalError):
            pads.observe(7, bad)
    after = pads.state_dict()
    assert all(torch.equal(after[name], value) or value.isnan().any() for name, value in before.items())


@pytest.mark.parametrize("stop", [0, 1, 2, 9])
@pytest.mark.parametrize("baseline", ["a2c", "ema"])
def test_a_run_that_goes_on_is_the_same_to_the_bit(stop, baseline):
    straight, first = make(baseline=baseline), make(baseline=baseline)
    for call in range(stop):
        straight.observe(4 + 3 * call, metrics(call))
        first.observe(4 + 3 * call, metrics(call))
    second = make(seed=5, baseline=baseline)
    second.load_state_dict(load(save(first.state_dict())))  # through a file's bytes
    torch.manual_seed(1)
    for call in range(stop, 15):
        torch.rand(3)
        expected = straight.observe(4 + 3 * call, metrics(call))
        assert second.observe(4 + 3 * call, metrics(call)) == expected
    for name, value in straight.state_dict().items():
        assert torch.equal(second.state_dict()[name].nan_to_num(7), value.nan_to_num(7)), name


def test_a_state_of_other_options_is_refused():
    saved = make().state_dict()
    with pytest.raises(StoreError, match="another policy"):
        make(hidden=8).load_state_dict(saved)
    pads = Pads(PolicyOptions(**SMALL), Distribution.starting(Support(n_support=9)), total_steps=9)
    with pytest.raises(StoreError, match=r"has 5 bins from 0\.1 to 1\.4, this run 8"):
        pads.load_state_dict(saved)


def test_seeds_differ_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    runs = []
    for seed in (0, 0, 1):
        pads = make(seed=seed)
        runs.append([pads.observe(4 + 3 * call, metrics(call)).q for call in range(4)])
    assert runs[0] == runs[1] != runs[2]
    assert torch.equal(torch.get_rng_state(), before)


# transfer


def test_a_saved_policy_acts_elsewhere_fixed_or_learning_on(tmp_path):
    pads = make()
    for call in range(8):
        last = pads.observe(4 + 3 * call, metrics(call))
    file = tmp_path / "policy.safetensors"
    pads.save_policy(file)
    first = file.read_bytes()
    pads.save_policy(file)
    assert file.read_bytes() == first
    assert load_distribution(file) == last
    saved = load_policy(file)
    assert saved.about["options"]["history"] == 3

    fixed, learning = make(policy=str(file), learn=False, seed=7), make(policy=str(file), seed=7)
    for call in range(6):
        fixed.observe(4 + 3 * call, metrics(call))
        learning.observe(4 + 3 * call, metrics(call))
    for name, value in fixed.learner.policy.state_dict().items():
        assert torch.equal(value, saved.weights[name])
    assert not torch.equal(learning.learner.policy.action.weight, saved.weights["action.weight"])
    assert fixed.distribution != Distribution.starting(fixed.distribution.support, "normal_low")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"history": 4}, "state_size 31, and this run has state_size 36"),
        ({"actions": (0.5, 1, 1.5)}, "actions"),
        ({"metrics": ("nmi", "recall", "dists")}, "metrics"),
        ({"hidden": 9}, "other layers"),
        ({"baseline": "ema"}, "other layers"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(tmp_path, options, message):
    make().save_policy(tmp_path / "policy.safetensors")
    with pytest.raises(InputError, match=message):
        make(policy=str(tmp_path / "policy.safetensors"), **options)


def test_better_validation_makes_the_actions_that_led_to_it_likelier():
    # a world in which raising the first bin is good, all else of it is bad, and the other bins do not matter
    pads = make(total_steps=2000, seed=1, every=1, reward="r1", history=1, averages=(2,), old_policy_every=1)
    good, step = 0.5, 2
    raised = []
    for _ in range(250):
        before = pads.distribution.q[0]
        pads.observe(step, Metrics((good, good), 0.5, 0.5, 0.5))
        action = pads.distribution.q[0] / before
        raised.append(action > 1)
        good += 0.001 if action > 1 else -0.001
        step += 1
    assert np.mean(raised[:30]) < 0.6
    assert np.mean(raised[-100:]) > 0.9


@pytest.mark.parametrize("combination", list(itertools.product(["default", "he_normal"], ["mean", "sum"])), ids=str)
def test_every_option_is_read(combination):
    init, combine = combination
    pads = make(init=init, combine=combine)
    pads.observe(4, metrics(0))
    expected = (metrics(0).recall[0] + metrics(0).nmi) / (2 if combine == "mean" else 1)
    assert pads.history.metric[1] == pytest.approx(expected)
    assert (pads.learner.policy.action.bias.abs().max().item() == 0) == (init == "he_normal")
