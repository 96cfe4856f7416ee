"""Losses of pytorch-metric-learning by name, and its miners' indices for ours."""

import sys

import numpy as np
import pytest
import torch
from loss_world import some_batch
from torch.nn.functional import normalize

import hardmine
from hardmine.errors import InputError, MissingError, StoreError, UnknownNameError
from hardmine.mining.batch import Batch
from hardmine.mining.miners.hardest_in_batch import HardestInBatch
from hardmine.options import check
from hardmine.train.losses import losses
from hardmine.train.losses.learnable import Learnable
from hardmine.train.losses.pml import _UNFIT, pml_loss
from hardmine.train.losses.triplet_margin import TripletMargin
from hardmine.train.networks import build
from hardmine.train.objective import build_objective
from hardmine.train.recipe import load_recipe

pml = pytest.importorskip("pytorch_metric_learning")
from pytorch_metric_learning import distances, miners, reducers, regularizers  # noqa: E402
from pytorch_metric_learning import losses as theirs  # noqa: E402

WEIGHTED = ["ArcFaceLoss", "CosFaceLoss", "NormalizedSoftmaxLoss", "P2SGradLoss", "ProxyAnchorLoss", "SoftTripleLoss"]


def make(name, **options):
    return check(losses.get(f"pml:{name}"), options, "loss")


@pytest.fixture
def batch():
    x = normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    return Batch(x, torch.arange(20) % 5)


@pytest.mark.parametrize(
    ("name", "options", "direct"),
    [
        ("CircleLoss", {"m": 0.3}, lambda: theirs.CircleLoss(m=0.3)),
        ("ContrastiveLoss", {}, lambda: theirs.ContrastiveLoss()),
        (
            "TripletMarginLoss",
            {"margin": 0.4, "distance": {"name": "LpDistance", "power": 2}, "reducer": {"name": "MeanReducer"}},
            lambda: theirs.TripletMarginLoss(
                margin=0.4, distance=distances.LpDistance(power=2), reducer=reducers.MeanReducer()
            ),
        ),
        (
            "NTXentLoss",
            {"embedding_regularizer": {"name": "LpRegularizer"}, "embedding_reg_weight": 0.5},
            lambda: theirs.NTXentLoss(embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.5),
        ),
    ],
)
def test_it_is_the_class_with_its_options(batch, name, options, direct):
    output = make(name, **options)(batch)
    assert output.value.item() == pytest.approx(direct()(batch.descriptors, batch.labels).item(), abs=1e-12)
    assert output.per_item.tolist() == [output.value.item()] * 20


def test_a_miners_tuples_go_to_the_class(batch):
    tuples = hardmine.miners.get("semi-hard")()(Batch(batch.descriptors, batch.labels, generator=torch.Generator()))
    found = make("TripletMarginLoss")(batch, tuples).value
    assert found.item() == theirs.TripletMarginLoss()(batch.descriptors, batch.labels, tuples.triplets).item()
    assert found.item() != make("TripletMarginLoss")(batch).value.item()


def test_pairs_are_rows_and_classes_that_overlap_are_no_negatives():
    batch = some_batch()
    x, _, negative = batch.rows()
    found = make("ContrastiveLoss", pos_margin=0.0, neg_margin=1.5)(batch).value
    kind = theirs.ContrastiveLoss(pos_margin=0.0, neg_margin=1.5)
    away = (torch.relu(1.5 - torch.cdist(x, x)) * negative)[negative]
    positive = batch.labels[:18][:, None] == batch.labels[:18]
    near = torch.cdist(x, x)[positive & ~torch.eye(18, dtype=torch.bool)]
    assert found.item() == pytest.approx((near[near > 0].mean() + away[away > 0].mean()).item(), abs=1e-6)
    free = Batch(batch.descriptors, batch.labels, batch.pairs)
    theirs_free = kind(x, batch.labels[:18]).item()
    assert make("ContrastiveLoss", pos_margin=0.0, neg_margin=1.5)(free).value.item() == theirs_free != found.item()


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_are_learned_saved_and_restored(batch, name):
    loss = make(name, weight_lr=0.1)
    assert isinstance(loss, Learnable)
    with pytest.raises(InputError, match="has weights: call start"):
        loss(batch)
    torch.manual_seed(3)
    loss.start(5, "cpu", 8)
    (group,) = loss.parameter_groups()
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.0)
    optimizer = torch.optim.SGD([group])
    single = Batch(batch.descriptors.float().requires_grad_(), batch.labels)
    before = loss(single).value
    saved = loss.state_dict()
    before.backward()
    optimizer.step()
    assert loss(single).value.item() < before.item()
    other = make(name, weight_lr=0.1)
    other.start(5, "cpu", 8)
    other.load_state_dict(saved)
    assert other(single).value.item() == before.item()
    wrong = make(name, weight_lr=0.1)
    wrong.start(6, "cpu", 8)
    with pytest.raises(StoreError, match="the saved loss has weights"):
        wrong.load_state_dict(saved)


@pytest.mark.parametrize("name", sorted(n for n in vars(theirs) if n.endswith("Loss")))
def test_every_class_is_usable_or_refused_with_its_reason(batch, name):
    kind = getattr(theirs, name)
    if not issubclass(kind, theirs.BaseMetricLossFunction) or name in ("GenericPairLoss", *_UNFIT):
        with pytest.raises(InputError):
            losses.get(f"pml:{name}")
        return
    loss = make(name, **({"margin": 0.4, "Tn": 1.0} if name == "RankedListLoss" else {}))
    loss.start(5, "cpu", 8)
    x = batch.descriptors.float().requires_grad_()
    loss(Batch(x, batch.labels)).value.backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.any()


@pytest.mark.parametrize("labels", [[0] * 6, list(range(6))])
@pytest.mark.parametrize("name", ["CircleLoss", "TripletMarginLoss", "MultiSimilarityLoss", "NTXentLoss"])
def test_a_batch_without_pairs_keeps_a_graph(name, labels):
    x = torch.randn(6, 4, requires_grad=True)
    output = make(name)(Batch(x, torch.tensor(labels)))
    output.value.backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_is_computed_in_float32_under_autocast(batch, dtype):
    half = batch.descriptors.to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        output = make("MultiSimilarityLoss", beta=50)(Batch(half.requires_grad_(), batch.labels))
    assert output.value.dtype == torch.float32
    assert output.value.item() == make("MultiSimilarityLoss", beta=50)(Batch(half.float(), batch.labels)).value.item()


def test_weights_of_items_are_taken_as_a_factor_or_refused(batch):
    loss, even = make("CircleLoss"), torch.full((20,), 0.5)
    assert loss(batch, None, even).value.item() == 0.5 * loss(batch).value.item()
    even[3] = 1
    with pytest.raises(InputError, match="gives one number for the batch"):
        loss(batch, None, even)
    with pytest.raises(InputError, match=r"shape \(7,\) for 20 items"):
        loss(batch, None, torch.ones(7))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CircelLoss", {}, "unknown loss of pytorch-metric-learning 'CircelLoss'. Did you mean 'CircleLoss'"),
        ("GenericPairLoss", {}, "unknown loss"),
        ("CircleLoss", {"gama": 3}, "Did you mean 'gamma'"),
        ("CircleLoss", {"weight_lr": 0.1}, "has no weights: leave weight_lr out"),
        ("CircleLoss", {"distance": {"name": "LpDistance"}}, "pml:CircleLoss"),  # it takes a cosine alone
        ("ContrastiveLoss", {"distance": "LpDistance"}, "expected a table with a name"),
        ("ContrastiveLoss", {"distance": {"name": "LpDistnce"}}, "Did you mean 'LpDistance'"),
        ("ContrastiveLoss", {"distance": {"name": "LpDistance", "pp": 1}}, "Did you mean 'p'"),
        ("ArcFaceLoss", {"num_classes": 3}, "num_classes"),
        ("RankedListLoss", {"margin": 0.4}, "Tn: Field required"),
        ("VICRegLoss", {}, "two views"),
        ("DynamicSoftMarginLoss", {}, "in no checkpoint"),
    ],
)
def test_what_does_not_fit_is_said(name, options, message):
    with pytest.raises(InputError, match=message):
        make(name, **options)


def test_a_prefix_that_is_none_and_weights_without_a_rate_are_said(batch):
    with pytest.raises(UnknownNameError, match="pml:NAME"):
        losses.get("plm:CircleLoss")
    loss = make("ArcFaceLoss")
    with pytest.raises(InputError, match="needs the number of classes"):
        loss.start(0, "cpu", 8)
    loss.start(5, "cpu", 8)
    with pytest.raises(InputError, match=r"give their learning rate, loss\.weight_lr"):
        loss.parameter_groups()


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    pml_loss.cache_clear()
    for name in list(sys.modules):
        if name.startswith("pytorch_metric_learning"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(MissingError, match="pip install pytorch-metric-learning"):
        losses.get("pml:CircleLoss")


def test_a_recipe_names_it_and_its_weights_follow_the_seed():
    def parts(*more):
        chosen = load_recipe("embedding-small", ["loss={name='pml:ProxyAnchorLoss', weight_lr=0.1}", *more])
        return build_objective(chosen, build("convnet", {"side": 28, "dim": 16}), 7)

    one = parts("train.seed=1").state()["proxies"]
    assert one.shape == (7, 16)
    assert torch.equal(one, parts("train.seed=1").state()["proxies"])
    assert not torch.equal(one, parts("train.seed=2").state()["proxies"])
    assert parts().miner is not None  # the recipe's: its tuples are handed over
    (group,) = parts().parameter_groups()
    assert group["lr"] == 0.1


def test_triplets_of_its_miners_are_ours(batch):
    found = hardmine.tuples_from_pml(miners.TripletMarginMiner()(batch.descriptors, batch.labels), batch)
    kind = theirs.TripletMarginLoss(margin=1, reducer=reducers.MeanReducer())
    per_triplet = kind(batch.descriptors, batch.labels, found.triplets).item()
    x = batch.descriptors
    near, far = ((x[found.anchor] - x[other]).norm(dim=1) for other in (found.positive, found.negative))
    assert torch.relu(1 + near - far).mean().item() == pytest.approx(per_triplet)
    assert torch.isfinite(TripletMargin()(batch, found).value)


def test_pairs_of_its_miners_become_triplets_of_one_anchor(batch):
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_triplets

    pairs = miners.MultiSimilarityMiner(epsilon=0.1)(batch.descriptors, batch.labels)
    found = hardmine.tuples_from_pml(pairs, batch)
    listed = lambda triplets: sorted(zip(*(t.tolist() for t in triplets), strict=True))  # noqa: E731
    assert len(found) > 20
    assert listed(found.triplets) == listed(convert_to_triplets(pairs, batch.labels))
    assert found.skipped == 20 - len(set(found.anchor.tolist()))
    assert torch.equal(found.item, found.anchor)


def test_our_tuples_come_back_as_they_are():
    batch = some_batch()
    ours = HardestInBatch()(batch)
    back = hardmine.tuples_from_pml(ours.triplets, batch)
    assert torch.equal(back.item, ours.item)
    assert all(torch.equal(a, b) for a, b in zip(back.triplets, ours.triplets, strict=True))
    assert TripletMargin()(batch, back).value == TripletMargin()(batch, ours).value


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[0], [1]], "2 arrays of indices"),
        ([[0], [1], [20]], "go from 20 to 20, and the batch has 20 rows"),
        ([[0], [-1], [2]], "go from -1"),
        ([[0, 1], [1], [2]], "not triplets"),
        ([[0, 1], [1], [2], [3]], "no partner"),
        ([[[0]], [1], [2]], "expected .T,."),
    ],
)
def test_indices_that_are_none_are_refused(batch, indices, message):
    with pytest.raises(InputError, match=message):
        hardmine.tuples_from_pml(tuple(torch.tensor(np.array(each)) for each in indices), batch)
