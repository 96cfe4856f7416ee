"""What the policy sees, against lists put together by hand."""

import math

import numpy as np
import pytest

from hardmine.errors import InputError, NumericalError, StoreError, UnknownNameError
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.options import RELEASED_DEFAULTS, PolicyOptions
from hardmine.mining.pads.state import Metrics, StateHistory
from hardmine.mining.pads.support import Support
from hardmine.options import check


def metrics(seed):
    rng = np.random.default_rng(seed)
    return Metrics(tuple(rng.random(2)), *rng.random(3))


def options(**more):
    return PolicyOptions(**{"history": 3, "averages": (2, 4), "recall_at": (1, 2)} | more)


@pytest.mark.parametrize("order", [("recall", "dists", "nmi"), ("nmi", "recall"), ("dists",)])
@pytest.mark.parametrize("distributions", [1, 3])
@pytest.mark.parametrize("train", [False, True])
def test_the_state_is_history_averages_distributions_progress(order, distributions, train):
    chosen = options(metrics=order, distributions=distributions, train_metrics=train)
    seen, distribution = StateHistory(chosen), Distribution.starting(Support(n_support=5))
    vectors, ps = [], []
    for call in range(9):
        now, own = metrics(call), metrics(100 + call)
        vector = []
        for m in [now, own] if train else [now]:
            parts = {"recall": list(m.recall), "nmi": [m.nmi], "dists": [m.intra, m.inter]}
            vector += [value for name in order for value in parts[name]]
        vectors.append(vector)
        ps.append(list(distribution.p))
        progress = 0.1 * call
        state = seen.observe(now, distribution, progress, own if train else None)

        history = ([vectors[0]] * 2 + vectors)[-3:]  # at the start the first vector stands for those before it
        expected = [value for vector in history for value in vector]
        for length in (2, 4):
            last = vectors[-length:]
            expected += [sum(column) / len(last) for column in zip(*last)]
        expected += [value for p in ([ps[0]] * (distributions - 1) + ps)[-distributions:] for value in p]
        expected.append(progress)
        assert state.tolist() == pytest.approx(expected)
        assert len(state) == chosen.state_size(4)
        distribution = distribution.times([1.25, 0.8, 1.0, 1.25])
    assert len(seen.vectors) == 4  # no more is kept than is used


def test_a_history_goes_on_from_its_tensors():
    first, distribution = StateHistory(options()), Distribution.starting(Support(n_support=5))
    for call in range(2):
        first.observe(metrics(call), distribution, 0.0)
    second = StateHistory(options())
    second.load(first.tensors())
    for call in range(2, 8):
        states = [each.observe(metrics(call), distribution, 0.0) for each in (first, second)]
        assert states[0].tolist() == states[1].tolist()
    with pytest.raises(StoreError, match="have 5 numbers, these options make 4"):
        StateHistory(options(metrics=("recall", "dists"))).load(first.tensors())


@pytest.mark.parametrize(
    ("kind", "combine", "value"),
    [("r1", "mean", 0.6), ("nmi", "sum", 0.8), ("r1+nmi", "mean", 0.7), ("r1+nmi", "sum", 1.4)],
)
def test_the_reward_metric(kind, combine, value):
    assert Metrics((0.6, 0.9), 0.8).reward_metric(options(reward=kind, combine=combine)) == pytest.approx(value)


def test_metrics_that_do_not_fit_are_refused():
    seen, distribution = StateHistory(options()), Distribution.starting(Support())
    with pytest.raises(InputError, match=r"1 recalls for the 2 values of recall_at \(1, 2\)"):
        seen.observe(Metrics((0.5,)), distribution, 0.0)
    with pytest.raises(NumericalError, match="not finite"):
        seen.observe(Metrics((0.5, math.nan)), distribution, 0.0)
    with pytest.raises(NumericalError, match="not finite"):
        Metrics((math.nan, 1.0)).reward_metric(options())
    with pytest.raises(InputError, match="needs recalls"):
        Metrics(nmi=0.5).reward_metric(options())
    with pytest.raises(InputError, match="train_metrics is False, and metrics on training data were given"):
        seen.observe(metrics(0), distribution, 0.0, metrics(1))
    with pytest.raises(InputError, match="were not given"):
        StateHistory(options(train_metrics=True)).observe(metrics(0), distribution, 0.0)
    assert seen.vectors == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"averages": [0]}, "one metric vector or more"),
        ({"metrics": ["nmi", "nmi"]}, "each part once"),
        ({"actions": [0.8, 1, 0]}, "positive and finite"),
        ({"history": 0}, "greater than or equal to 1"),
    ],
)
def test_options_are_checked(values, message):
    with pytest.raises(InputError, match=message):
        check(PolicyOptions, values, "pads")
    with pytest.raises(UnknownNameError, match="Did you mean 'every'"):
        check(PolicyOptions, {"evry": 3}, "pads")


def test_published_sizes():
    assert PolicyOptions().state_size(29) == 198
    assert PolicyOptions(**RELEASED_DEFAULTS).state_size(29) == 128
    assert PolicyOptions(train_metrics=True).state_size(29) == 24 * 14 + 30
