"""Draws by weight from the rows of a table."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from miner_world import fits, seeded

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.draws import draw
from hardmine.mining.miners import miners


@settings(max_examples=60, deadline=None)
@given(
    log_weights=st.lists(st.lists(st.sampled_from([-math.inf, -900.0, 0.0, 3.0, 700.0]), min_size=4, max_size=4)),
    seed=st.integers(0, 9),
)
def test_a_draw_is_of_a_positive_weight_or_none(log_weights, seed):
    table = torch.tensor(log_weights, dtype=torch.float64).reshape(len(log_weights), 4)
    for line, column in zip(log_weights, draw(table, seeded(seed)).tolist()):
        assert (column == -1) == all(value == -math.inf for value in line)
        assert column == -1 or line[column] > max(line) - 745  # exp(-745) is the least positive number


def test_draws_follow_the_weights_at_any_scale_and_take_one_number_a_line():
    p = np.array([0.5, 0.0, 0.3, 0.2])
    with np.errstate(divide="ignore"):
        line = torch.from_numpy(np.log(p))
    for shift in (0.0, -2000.0, 5000.0):
        columns = draw((line + shift).expand(20000, 4), seeded(int(abs(shift))))
        assert fits(np.bincount(columns, minlength=4), p)
    first, second = seeded(3), seeded(3)
    draw(torch.full((7, 4), -torch.inf), first)
    draw(torch.zeros(7, 9), second)
    assert torch.equal(first.get_state(), second.get_state())


def test_a_draw_at_the_end_of_the_table_is_of_a_positive_weight(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), 1 - 2.0**-53, dtype=torch.float64))
    line = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.0, 0.0]]))
    assert draw(line, None).tolist() == [2]
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.zeros(n, dtype=torch.float64))
    assert draw(line.flip(1), None).tolist() == [2]


def test_a_generator_of_another_device_is_refused():
    class Elsewhere:
        device = torch.device("cuda:0")

    for name in ("random", "semi-hard"):
        with pytest.raises(InputError, match="generator is on cuda:0"):
            miners.get(name)()(Batch(torch.eye(4), torch.tensor([0, 0, 1, 1]), generator=Elsewhere()))
