"""`retrieval`: what it measures, from what, and what it draws."""

import numpy as np
import pytest
from hand_round import HandRound, unit
from mining_world import Tiny, make_store
from PIL import Image

from hardmine.errors import InputError, StoreError, UnknownNameError
from hardmine.metrics.clustering import k_means, nmi, pairwise_f1
from hardmine.mining.mine import mine
from hardmine.protocols.base import protocol
from hardmine.protocols.described import Described
from hardmine.protocols.retrieval_figures import Items, retrieve
from hardmine.protocols.retrieval_pictures import RIGHT, WRONG
from hardmine.store.search import nearest

SIZES = (3, 1, 4, 2, 2)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store", SIZES)


@pytest.fixture
def split_store(tmp_path):
    return make_store(tmp_path / "split", (6, 6, 1, 8, 5), split="by-item:0.5")


def described(store, seed=0):
    x = np.random.default_rng(seed).normal(size=(len(store), 4)).astype(np.float32)
    x[:, 0] += store.label
    return lambda rows: x[rows]


def test_leave_one_out(store):
    describe = described(store)
    method = protocol("retrieval", {"k": [1, 3], "metrics": ["r@k", "recall-fraction", "map@r", "map"]})
    found = method.evaluate(store, describe, None)
    rows = store.rows()
    want = retrieve(Items(describe(rows), rows, store.label[rows]), ks=(1, 3), metrics=method.options.metrics)
    assert list(found.metrics) == ["r@1", "r@3", "map@r", "map"]
    assert list(found.details) == ["recall-fraction@1", "recall-fraction@3"]
    assert {**found.metrics, **found.details} == {name: v.mean() for name, v in want.values.items()}
    facts = found.facts
    assert (facts["queries"], facts["lone"], facts["gallery"], facts["classes"]) == (11, 1, 12, 5)
    assert facts["protocol"] == "leave-one-out"
    assert facts["definitions"]["r@k"].startswith("any hit")
    assert facts["neighbours"] == "searched: every match placed in the whole ranking"


def test_query_and_gallery(split_store):
    describe = described(split_store)
    options = {"query_split": "val", "gallery_split": "train", "k": 1, "metrics": "r@k,map"}
    found = protocol("retrieval", options).evaluate(split_store, describe, None)
    train, val, label = split_store.rows("train"), split_store.rows("val"), split_store.label
    order = {q: sorted(train, key=lambda r: (np.square(describe(q) - describe(r)).sum(), r)) for q in val}
    counted = [q for q in val if label[q] in label[train]]
    assert found.facts["queries"] == len(counted)
    assert found.facts["lone"] == len(val) - len(counted)
    assert found.metrics["r@1"] == np.mean([label[order[q][0]] == label[q] for q in counted])
    precision = []
    for q in counted:
        hit = np.array([label[r] == label[q] for r in order[q]])
        precision.append((np.cumsum(hit) / np.arange(1, len(hit) + 1))[hit].mean())
    assert found.metrics["map"] == pytest.approx(np.mean(precision))
    assert "split" not in found.facts
    assert (found.facts["query_split"], found.facts["gallery_split"]) == ("val", "train")


def test_lists_of_a_round_are_used_where_they_reach(store, tmp_path):
    mined = mine(store, tmp_path / "mining", Tiny(), derive=("knn",), neighbours=3).round
    for options, used in (
        ({"k": 3, "metrics": "r@k,map@r"}, "from the lists of round 1"),
        ({"k": 4, "metrics": "r@k"}, "searched: up to the 4 nearest (the lists of round 1 have 3 neighbours)"),
        ({"k": 3, "metrics": "r@k", "ties": "optimistic"}, "searched: up to the 3 nearest"),
        ({"k": 3, "metrics": "map"}, "searched: every match placed in the whole ranking"),
    ):
        method = protocol("retrieval", options)
        found = method.evaluate(store, Described(mined), None)
        assert found.facts["neighbours"].startswith(used)
        plain = method.evaluate(store, lambda rows: Described(mined)(rows), None)
        assert plain.metrics == found.metrics
        assert "none stored" in plain.facts["neighbours"] or options["metrics"] == "map"


def test_lists_that_do_not_fit_are_left_aside(store, split_store, tmp_path):
    bare = mine(store, tmp_path / "bare", Tiny(), derive=()).round
    assert Described(bare).lists(store.rows()) == (None, "round 1 has no lists")
    mined = mine(store, tmp_path / "mining", Tiny(), derive=("knn",), neighbours=3).round
    assert Described(mined).lists(store.rows()[1:]) == (None, "round 1 is over other rows")
    assert Described(mined, bare).lists(store.rows())[0] is None
    mined.attrs["derived"]["knn"]["knn_index"] = "IVF4,Flat"
    assert Described(mined).lists(store.rows()) == (None, "the lists of round 1 are not exact (IVF4,Flat)")


def test_lists_of_a_round_whose_classes_lie_between_each_other():
    """After an append the entries, in class order, are not in the order of the rows."""
    used = HandRound((4, 5, 3), unit(12), stored=3)
    used.entry_row = np.random.default_rng(0).permutation(used.entry_row)
    used._lists = (nearest(used.x, used.entry_row, 3),) * 2
    used.attrs = {"derived": {"knn": {"neighbours": 3}}}
    rows = np.sort(used.entry_row)
    lists, source = Described(used).lists(rows)
    assert source == "the lists of round 1"
    assert np.array_equal(lists, nearest(Described(used)(rows), rows, 3).rows)


def test_descriptors_of_two_rounds(split_store, tmp_path):
    rounds = [mine(split_store, tmp_path / "m", Tiny(), split=split, derive=()).round for split in ("train", "val")]
    both = Described(*rounds)
    rows = np.random.default_rng(0).permutation(split_store.rows("train").tolist() + split_store.rows("val").tolist())
    by_row = {row: d for r in rounds for row, d in zip(r.entry_row, r.descriptors())}
    assert np.array_equal(both(rows), np.stack([by_row[row] for row in rows]))
    with pytest.raises(StoreError, match="round 1 has no descriptor of"):
        Described(rounds[0])(rows)


def test_clusters(store):
    describe = described(store)
    options = {"metrics": ["nmi", "f1"], "seeds": [4, 7], "iterations": 5}
    found = protocol("retrieval", options).evaluate(store, describe, None)
    rows = store.rows()
    clusters = [k_means(describe(rows), 5, seed, 5) for seed in (4, 7)]
    for name, metric in (("nmi", nmi), ("f1", pairwise_f1)):
        each = [metric(c, store.label[rows]) for c in clusters]
        assert found.metrics[name] == np.mean(each)
        assert [found.details[f"{name}-seed-{seed}"] for seed in (4, 7)] == each
    facts = found.facts
    assert (facts["clustered"], facts["clusters"], facts["seeds"], facts["iterations"]) == (12, 5, [4, 7], 5)
    assert "neighbours" not in facts
    fewer = protocol("retrieval", {**options, "clusters": 2}).evaluate(store, describe, None)
    assert fewer.facts["clusters_filled"] == [2, 2]


def test_the_picture_frames_right_and_wrong(store, tmp_path):
    describe, other = described(store), described(store, 1)
    method = protocol("retrieval", {"k": 2, "pictures": 3})
    results = {"ours": method.evaluate(store, describe, None), "theirs": method.evaluate(store, other, None)}
    rows, near = results["ours"].curves["pictured"]
    found = retrieve(Items(describe(store.rows()), store.rows(), store.label), ks=(2,), metrics=("r@k", "map@r"))
    first = dict(zip(found.query.tolist(), found.first.tolist()))
    assert [first[r] for r in rows] == sorted(first.values(), reverse=True)[:3]  # the worst
    for row, five in zip(rows, near):
        others = [r for r in store.rows() if r != row]
        assert five.tolist() == sorted(others, key=lambda r: np.square(describe(r) - describe(row)).sum())[:5]
    method.plot(results, tmp_path / "found.png")
    pixels = np.asarray(Image.open(tmp_path / "found.png")).reshape(-1, 3)
    right = sum(
        (store.label[n] == store.label[r[:, None]]).sum() for r, n in (e.curves["pictured"] for e in results.values())
    )
    frame = 104 * 104 - 96 * 96
    green, red = ((pixels == colour).all(1).sum() for colour in (RIGHT, WRONG))
    assert green == right * frame
    assert red == (30 - right) * frame


def test_random_pictures_are_seeded(store):
    def rows(**options):
        return (
            protocol("retrieval", {"pictures": 4, **options})
            .evaluate(store, described(store), None)
            .curves["pictured"][0]
        )

    assert np.array_equal(rows(pictured="random"), rows(pictured="random"))
    assert not np.array_equal(rows(pictured="random"), rows(pictured="random", picture_seed=1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"query_split": "val"}, InputError, "go together"),
        ({"k": 0}, InputError, "greater than 0"),
        ({"k": []}, InputError, "at least 1"),
        ({"metrics": "recall"}, InputError, "metrics"),
        ({"ks": [1]}, UnknownNameError, "Did you mean"),
        ({"query_split": "vall", "gallery_split": "train"}, UnknownNameError, "Did you mean 'val'"),
    ],
)
def test_options_that_make_no_sense(split_store, options, error, message):
    with pytest.raises(error, match=message):
        protocol("retrieval", options).evaluate(split_store, described(split_store), None)


def test_what_cannot_be_measured_is_said(split_store, tmp_path):
    both = protocol("retrieval", {"query_split": "val", "gallery_split": "train"})
    with pytest.raises(InputError, match="leave out the split 'val'"):
        both.evaluate(split_store, described(split_store), "val")
    with pytest.raises(InputError, match="has the splits train, val"):
        protocol("retrieval").evaluate(split_store, described(split_store), None)
    alone = make_store(tmp_path / "alone", (1, 1, 1))
    with pytest.raises(InputError, match="none of the 3 queries has another item of its class"):
        protocol("retrieval").evaluate(alone, described(alone), None)
    clustered = protocol("retrieval", {"metrics": "nmi"})
    with pytest.raises(InputError, match="nothing was ranked"):
        clustered.plot({"x": clustered.evaluate(alone, described(alone), None)}, tmp_path / "x.png")
