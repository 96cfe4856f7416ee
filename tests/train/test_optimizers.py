"""Optimisers: groups, learning-rate factors, named state, and options that belong to one of them."""

import pytest
import torch
from torch import nn

from hardmine.errors import InputError
from hardmine.options import check
from hardmine.train.optimizers import NamedOptimizer, Optimizer


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def descend(net, optimizer, steps, beta=None):
    for step in steps:
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        loss = net(x).square().sum() * (1 if beta is None else beta.exp().sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(1 - step / 10)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_state_by_name_continues_to_the_bit(name):
    options = check(Optimizer, {"name": name, "lr": 0.01, "head_lr": 0.1}, "optimizer")

    def start():
        net, beta = Net(), nn.Parameter(torch.zeros(3))
        groups = [{"params": [beta], "lr": 5e-4, "weight_decay": 0.0}]
        return net, beta, NamedOptimizer(options, net, groups)

    net, beta, whole = start()
    descend(net, whole, range(6), beta)
    first, first_beta, optimizer = start()
    descend(first, optimizer, range(3), first_beta)
    saved = {k: v.clone() for k, v in optimizer.state().items()}
    second, second_beta, resumed = start()
    second.load_state_dict(first.state_dict())
    second_beta.data.copy_(first_beta.data)
    resumed.load(saved)
    descend(second, resumed, range(3, 6), second_beta)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), second.parameters()))
    assert torch.equal(beta, second_beta)
    assert all("/" in name for name in saved)
    assert not any(name.startswith("frozen") for name in saved)


def test_equals_torchs_own_with_the_learning_rates_by_hand():
    options = Optimizer(lr=0.1, head_lr=0.01, momentum=0.5, dampening=0.0, weight_decay=0.1)
    ours, theirs = Net(), Net()
    optimizer = NamedOptimizer(options, ours)
    groups = [{"params": theirs.body.parameters(), "lr": 0.1}, {"params": theirs.head.parameters(), "lr": 0.01}]
    plain = torch.optim.SGD(groups, momentum=0.5, weight_decay=0.1)
    for step in range(4):
        for group, lr in zip(plain.param_groups, (0.1, 0.01)):
            group["lr"] = lr * (1 - step / 10)
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        plain.zero_grad()
        theirs(x).square().sum().backward()
        plain.step()
    descend(ours, optimizer, range(4))
    assert all(torch.allclose(a, b) for a, b in zip(ours.parameters(), theirs.parameters()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "adam", "momentum": 0.5}, "momentum is for sgd, not for adam"),
        ({"name": "sgd", "betas": (0.5, 0.9)}, "betas is for adam, not for sgd"),
        ({"name": "rmsprop"}, "name"),
    ],
)
def test_options_of_another_optimiser_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        check(Optimizer, options, "optimizer")


def test_a_head_rate_needs_a_head():
    with pytest.raises(InputError, match="no layer called head"):
        NamedOptimizer(Optimizer(head_lr=1.0), nn.Linear(2, 2))
