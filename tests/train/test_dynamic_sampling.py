"""DSDML's losses on single items: against loops, at their edges, and the epochs that their dynamic terms follow."""

import math

import pytest
import torch
from dynamic_world import ONE_ANCHOR, slow_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.staged import Elapsed, Staged
from hardmine.options import check
from hardmine.train.losses import losses

NAMES = sorted(ONE_ANCHOR)
KINDS = {"static": {}, "+T": {"select": True}, "+W": {"dynamic": True}, "starred": {"select": True, "dynamic": True}}
each = pytest.mark.parametrize("name", NAMES)
each_kind = pytest.mark.parametrize("kind", KINDS)


def make(name, kind="static", elapsed=None, **options):
    loss = check(losses.get(name), {**KINDS[kind], **options}, "loss")
    loss.advance(elapsed or Elapsed(12, 20, 2))
    return loss


def slow(name, loss, x, labels):
    pairs = (lambda i, j: labels[i] == labels[j], lambda i, j: labels[i] != labels[j])
    return slow_rows(name, loss, x.tolist(), *pairs, loss.omega)


def cosines(cosine, rest):
    """Unit rows in three dimensions that have these cosines with (1, 0, 0), turned about it by these angles."""
    first, turn = torch.tensor(cosine, dtype=torch.float64), torch.tensor(rest, dtype=torch.float64)
    away = (1 - first.square()).clamp(min=0).sqrt()
    return torch.stack([first, away * turn.cos(), away * turn.sin()], 1)


labelled = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([-1.0, -0.4, 0.05, 0.31, 0.77, 0.95, 1.0]), st.integers(0, 5)),
    min_size=0,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(rows=labelled, name=st.sampled_from(NAMES), kind=st.sampled_from(sorted(KINDS)))
def test_any_batch_equals_the_loop(rows, name, kind):
    """Classes of any size, one class, no row at all, duplicates, and anchors whose positives or negatives are none."""
    labels = [label for label, _, _ in rows]
    x = cosines([c for _, c, _ in rows], [1.1 * turn for _, _, turn in rows]).requires_grad_()
    loss = make(name, kind)
    output = loss(Batch(x, torch.tensor(labels, dtype=torch.int64)))
    expected = slow(name, loss, x.detach(), labels)
    assert output.per_item.tolist() == pytest.approx(expected, abs=1e-8)
    assert output.value.item() == pytest.approx(sum(expected) / max(len(rows), 1), abs=1e-8)
    assert int(output.skipped) >= sum(len(set(labels)) == 1 or labels.count(label) == 1 for label in labels)
    output.value.backward()
    assert torch.isfinite(x.grad).all()


@each
@pytest.mark.parametrize(
    ("kind", "case"),
    [(kind, case) for kind in KINDS for case in ("one class", "all alone")]
    + [(kind, case) for kind in ("+T", "starred") for case in ("same point", "nothing near")],  # all is selected away
)
def test_a_batch_of_which_nothing_is_left_has_loss_zero_with_a_gradient(name, kind, case):
    x, labels = torch.eye(6), torch.tensor([0, 0, 0, 1, 1, 1])
    if case == "one class":
        labels[:] = 0
    elif case == "all alone":
        labels = torch.arange(6)
    elif case == "same point":
        x[:] = x[0]  # every positive is above tau_p
    x = x.requires_grad_()
    output = make(name, kind)(Batch(x, labels))
    output.value.backward()
    assert output.value.item() == 0
    assert int(output.skipped) == 6
    assert torch.equal(x.grad, torch.zeros(6, 6))


@each
def test_an_anchor_that_is_skipped_still_counts_in_the_divisor(name):
    x = normalize(torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    labels = torch.tensor([0, 0, 1, 1, 1, 0, 2])
    output = make(name)(Batch(x, labels))
    assert int(output.skipped) == 1
    assert output.per_item[6] == 0
    assert output.value.item() == pytest.approx(sum(slow(name, make(name), x, labels.tolist())) / 7, abs=1e-9)


@each
def test_a_row_is_left_out_by_its_number_and_a_copy_of_it_is_not(name):
    """The published program tells a row from itself by s < 1, which rounding breaks; a copy of an image is a pair."""
    x = normalize(torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    x[1] = x[0]
    labels = torch.tensor([0, 0, 0, 1, 1])
    scaled = (1 + 1e-9) * x
    for rows in (x, scaled):
        expected = slow(name, make(name), rows, labels.tolist())
        assert make(name)(Batch(rows, labels)).per_item.tolist() == pytest.approx(expected, abs=1e-8)


@each
@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_extreme_exponents_stay_finite(name, kind, dtype):
    """At beta = 50 and omega = 2, s = 1 makes e^25 and more, which half precision does not have."""
    x = torch.eye(8)[[0, 0, 1, 0, 0, 2]].to(dtype).requires_grad_()
    beta = {} if name in ("lifted-log", "similarity-triplet") else {"beta": 50.0}
    loss = make(name, kind, Elapsed(19, 20), **beta)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = loss(Batch(x, torch.tensor([0, 0, 0, 1, 1, 1])))
    output.value.backward()
    assert output.value.dtype == torch.float32
    assert torch.isfinite(output.value)
    assert torch.isfinite(x.grad).all()
    assert loss.omega == (2.0 if loss.dynamic else 0.0)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 3.0])
def test_multi_similaritys_own_mining_equals_the_loop(epsilon):
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3])
    noise = torch.randn(12, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = normalize(torch.eye(6, dtype=torch.float64)[labels] + 0.4 * noise)
    loss = make("multi-similarity", epsilon=epsilon)
    found = loss(Batch(x, labels)).per_item
    assert found.tolist() == pytest.approx(slow("multi-similarity", loss, x, labels.tolist()), abs=1e-9)
    everything = make("multi-similarity")(Batch(x, labels)).per_item
    assert torch.allclose(found, everything) == (epsilon == 3.0)


@pytest.mark.parametrize("mined", [False, True])
def test_multi_similarity_is_that_of_pytorch_metric_learning(mined):
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    x = normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64))
    labels = torch.arange(20) % 5
    tuples = MultiSimilarityMiner(epsilon=0.1)(x, labels) if mined else None
    theirs = MultiSimilarityLoss(alpha=2, beta=50, base=0.5)(x, labels, tuples)
    ours = make("multi-similarity", **({"epsilon": 0.1} if mined else {}))(Batch(x, labels))
    assert ours.value.item() == pytest.approx(theirs.item(), abs=1e-7)


@each
def test_nothing_is_selected_or_added_unless_asked_for(name):
    x = normalize(torch.randn(10, 4, generator=torch.Generator().manual_seed(6)))
    batch = Batch(x, torch.arange(10) % 3)
    values = {kind: make(name, kind)(batch).value.item() for kind in KINDS}
    assert len(set(values.values())) == 4
    start = Elapsed(0, 20, 2)
    for plain, dynamic in (("static", "+W"), ("+T", "starred")):  # at omega = 0 the terms are gone
        first = make(name, dynamic, start, first_epoch=0)(batch)
        assert first.value.item() == make(name, plain)(batch).value.item()
        assert first.figures == {"omega": 0.0}
        assert make(name, plain)(batch).figures == {}


@pytest.mark.parametrize(
    ("options", "elapsed", "omega"),
    [
        ({}, Elapsed(0, 2400, 4), 2 / 600),  # 600 epochs of 4 batches: CUB
        ({}, Elapsed(3, 2400, 4), 2 / 600),
        ({}, Elapsed(4, 2400, 4), 4 / 600),
        ({}, Elapsed(2399, 2400, 4), 2.0),
        ({}, Elapsed(2400, 2400, 4), 2.0),
        ({"first_epoch": 0}, Elapsed(600, 2400, 4), 0.5),  # the program's 150th epoch
        ({"first_epoch": 0}, Elapsed(2399, 2400, 4), 2 * 599 / 600),
        ({"epoch": "batch"}, Elapsed(599, 2400, 4), 0.5),
        ({"epoch": "batch", "first_epoch": 0}, Elapsed(600, 2400, 4), 0.5),
        ({}, Elapsed(9, 10, 4), 2.0),  # two and a half epochs are three
        ({}, Elapsed(4, 10, 4), 4 / 3),
        ({}, Elapsed(2, 10, 400), 2.0),
    ],
)
def test_omega_is_twice_the_share_of_the_epochs(options, elapsed, omega):
    loss = make("multi-similarity", "+W", elapsed, **options)
    assert isinstance(loss, Staged)
    assert loss.omega == pytest.approx(omega)
    assert loss.facts()["last_omega"] == loss.omega
    assert make("multi-similarity", "+T", elapsed).facts() == {}


def test_a_dynamic_loss_must_be_told_the_epoch():
    with pytest.raises(InputError, match="depend on the epoch: call advance"):
        losses.get("multi-similarity")(dynamic=True)(Batch(torch.eye(4), torch.tensor([0, 0, 1, 1])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau_b": 0.4}, "tau_b has no effect without select = true"),
        ({"tau_p": 0.8}, "tau_p has no effect without select or dynamic = true"),
        ({"dynamic": True, "tau_b": 0.4}, "tau_b has no effect"),
        ({"select": True, "epoch": "batch"}, "epoch has no effect without dynamic = true"),
        ({"select": True, "first_epoch": 0}, "first_epoch has no effect"),
        ({"select": True, "epsilon": 0.1}, "give one"),
        ({"dynamic": True, "first_epoch": 2}, "first_epoch"),
    ],
)
def test_options_without_effect_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make("multi-similarity", **options)


def test_triplets_are_counted_as_a_list_of_them_would_be():
    """Similarities on a grid, so that many are equal to a positive's threshold or to each other."""
    grid = [-0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0]
    x = cosines([1.0, *grid, *grid], [0.0] * 8 + [math.pi] * 7)
    labels = [0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    for kind in KINDS:
        loss = make("similarity-triplet", kind)
        exact = torch.round(x @ x.T * 2**40) / 2**40
        same = torch.tensor(labels)[:, None] == torch.tensor(labels)[None]
        found, _ = loss.per_row(exact, same & ~torch.eye(15, dtype=torch.bool), ~same)
        expected = [
            ONE_ANCHOR["similarity-triplet"](loss, *_kept(loss, line, i, labels), loss.omega)
            for i, line in enumerate(exact.tolist())
        ]
        assert found.tolist() == pytest.approx(expected, abs=1e-9)


def _kept(loss, line, i, labels):
    everyone = [v for j, v in enumerate(line) if j != i and labels[j] == labels[i]]
    p, q = everyone, [v for j, v in enumerate(line) if labels[j] != labels[i]]
    if loss.select:
        p = [v for v in p if v < loss.tau_p]
        q = [v for v in q if v > loss.tau_n and v > min(p, default=9) - loss.tau_b]
    return p if q else [], q, len(everyone)
