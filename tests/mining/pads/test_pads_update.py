"""The policy's gradients against derivations by hand, and finite differences."""

import itertools
import math

import numpy as np
import pytest
import torch

from hardmine.mining.pads.learner import Learner
from hardmine.mining.pads.options import PolicyOptions
from hardmine.mining.pads.policy import Policy, choose, log_of_chosen
from hardmine.mining.pads.update import RewardAverage, ppo_loss, reinforce_loss, reward, td_target


def softmax(z):
    e = np.exp(z - z.max(0))
    return e / e.sum(0)


@pytest.mark.parametrize("advantage", [1.7, -0.6, 0.0])
def test_ppo_gradient_is_the_softmax_gradient_where_the_ratio_is_not_clipped(advantage):
    rng = np.random.default_rng(0)
    z, old = rng.normal(size=(3, 40)), rng.normal(size=(3, 40))
    action = rng.integers(3, size=40)
    logits = torch.from_numpy(z).requires_grad_()
    log_p = torch.log_softmax(logits, 0)
    old_log_p = torch.from_numpy(np.log(softmax(old)))
    chosen = (log_of_chosen(log_p, torch.from_numpy(action)), log_of_chosen(old_log_p, torch.from_numpy(action)))
    loss = ppo_loss(*chosen, advantage, 0.2)
    loss.backward()

    expected, total, pi, pi_old = np.zeros((3, 40)), 0.0, softmax(z), softmax(old)
    clipped = 0
    for k in range(40):
        ratio = pi[action[k], k] / pi_old[action[k], k]
        total += min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
        if (advantage > 0 and ratio > 1.2) or (advantage < 0 and ratio < 0.8):
            clipped += 1
            continue
        for a in range(3):
            expected[a, k] = -advantage * ratio * ((a == action[k]) - pi[a, k]) / 40
    assert loss.item() == pytest.approx(-total / 40)
    assert logits.grad.numpy() == pytest.approx(expected, abs=1e-12)
    assert (clipped > 3) == (advantage != 0)


@pytest.mark.parametrize("advantage", [1.7, -0.6])
def test_reinforce_gradient_is_the_softmax_gradient(advantage):
    rng = np.random.default_rng(1)
    z, action = rng.normal(size=(3, 9)), rng.integers(3, size=9)
    logits = torch.from_numpy(z).requires_grad_()
    reinforce_loss(log_of_chosen(torch.log_softmax(logits, 0), torch.from_numpy(action)), advantage).backward()
    pi = softmax(z)
    expected = [[-advantage * ((a == action[k]) - pi[a, k]) / 9 for k in range(9)] for a in range(3)]
    assert logits.grad.numpy() == pytest.approx(np.array(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("method", "baseline", "target"), list(itertools.product(["ppo", "reinforce"], ["a2c", "ema"], ["metric", "td"]))
)
def test_the_whole_gradient_equals_finite_differences_with_constants_held(method, baseline, target):
    options = PolicyOptions(method=method, baseline=baseline, value_target=target, hidden=6)
    policy = Policy(5, 4, hidden=6, value=baseline == "a2c", seed=3).double()
    learner = Learner(policy, options)
    with torch.no_grad():  # the old policy is another, so that some ratios are clipped
        for parameter in learner.old.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    learner.average.value, learner.average.seen = 0.25, True
    rng = np.random.default_rng(2)
    state, following = (torch.from_numpy(rng.normal(size=5)) for _ in range(2))
    action, e, r = torch.tensor([0, 2, 1, 2]), 0.7, 1
    learner.loss(state, action, r, e, following).backward()

    def forward(x):
        with torch.no_grad():
            w = {name: p.numpy() for name, p in policy.named_parameters()}
            h = np.maximum(w["trunk.0.weight"] @ x.numpy() + w["trunk.0.bias"], 0)
            h = np.maximum(w["trunk.2.weight"] @ h + w["trunk.2.bias"], 0)
            z = (w["action.weight"] @ h + w["action.bias"]).reshape(3, 4)
            value = float((w["value.weight"] @ h + w["value.bias"])[0]) if "value.weight" in w else 0.0
            return np.log(softmax(z))[action.numpy(), range(4)], value

    _, value = forward(state)
    td = r + 0.99 * forward(following)[1]
    advantage = td - value if baseline == "a2c" else r - 0.25
    fitted = e if target == "metric" else td
    with torch.no_grad():
        old = log_of_chosen(learner.old(state)[0], action).numpy()

    def loss():
        log_p, v = forward(state)
        if method == "ppo":
            terms = [min(q * advantage, min(max(q, 0.8), 1.2) * advantage) for q in np.exp(log_p - old)]
        else:
            terms = [advantage * lp for lp in log_p]
        return -sum(terms) / 4 + (0.5 * (v - fitted) ** 2 if baseline == "a2c" else 0)

    for parameter in policy.parameters():
        flat = parameter.data.view(-1)
        for i in range(0, len(flat), 3):
            kept = flat[i].item()
            flat[i] = kept + 1e-6
            up = loss()
            flat[i] = kept - 1e-6
            down = loss()
            flat[i] = kept
            assert parameter.grad.view(-1)[i].item() == pytest.approx((up - down) / 2e-6, abs=1e-7)


def test_the_reward_is_the_sign_of_progress():
    assert [reward(*pair) for pair in ((0.5, 0.4), (0.4, 0.5), (0.5, 0.5))] == [1, -1, 0]
    assert td_target(1, torch.tensor(2.0), 0.99) == torch.tensor(2.98)


def test_the_running_average_starts_at_the_first_reward():
    average, past, ema = RewardAverage(0.05), [], 0.0
    for r in (1, -1, 0, 1, 1):
        expected = r - (ema if past else 0)
        assert average.advantage(r) == pytest.approx(expected)
        ema = 0.95 * ema + 0.05 * r if past else r
        past.append(r)
    assert average.value == pytest.approx(ema)


def test_actions_are_drawn_by_their_probabilities_and_nan_is_guarded():
    log_p = torch.log(torch.tensor([[0.2, 1.0], [0.5, 0.0], [0.3, 0.0]]))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([choose(log_p, generator) for _ in range(4000)])
    assert (drawn[:, 1] == 0).all()
    share = torch.bincount(drawn[:, 0], minlength=3) / 4000
    assert share.tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.03)
    nan = torch.tensor([[math.nan, math.nan], [math.log(0.5), math.nan], [math.log(0.25), math.nan]])
    drawn = torch.stack([choose(nan, generator) for _ in range(4000)])
    assert (torch.bincount(drawn[:, 0], minlength=3) / 4000).tolist() == pytest.approx([0, 2 / 3, 1 / 3], abs=0.03)
    assert (torch.bincount(drawn[:, 1], minlength=3) / 4000).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)


def test_the_network_has_the_published_layers_and_depends_on_its_seed_alone():
    policy = Policy(198, 29, seed=4)
    shapes = {name: tuple(value.shape) for name, value in policy.named_parameters() if name.endswith("weight")}
    assert shapes == {
        "trunk.0.weight": (128, 198),
        "trunk.2.weight": (128, 128),
        "action.weight": (87, 128),
        "value.weight": (1, 128),
    }
    log_p, value = policy(torch.randn(198))
    assert log_p.shape == (3, 29)
    assert value.shape == ()
    assert log_p.exp().sum(0).tolist() == pytest.approx([1] * 29, abs=1e-5)
    before = torch.get_rng_state()
    same = Policy(198, 29, seed=4).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in policy.state_dict().items())
    assert torch.equal(torch.get_rng_state(), before)
    he = Policy(198, 29, init="he_normal")
    assert he.trunk[0].weight.std().item() == pytest.approx(math.sqrt(2 / 198), rel=0.05)
    assert he.action.bias.abs().max() == 0
