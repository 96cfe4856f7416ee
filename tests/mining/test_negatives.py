"""Negatives from the whole set against slow references, and the table of what was skipped."""

import numpy as np
import pytest
from hand_round import HandRound, on_a_line, unit
from mining_world import Tiny, make_store
from scipy.stats import chisquare

import hardmine.mining.negative_draws as draws_module
import hardmine.mining.negative_lists as lists_module
from hardmine.errors import InputError, UnknownNameError
from hardmine.mining.mine import mine
from hardmine.mining.negative_rules import rules
from hardmine.mining.negatives import as_rule, negatives

SIZES = [3, 1, 4, 5, 2, 4, 6, 3]
RULES = {
    "nearest": {},
    "rank-window": {"first": 2, "last": 9},
    "absolute-margin": {"margin": 0.05},
    "relative-margin": {"margin": 0.1},
}


def slow(source, row, k, lower=-np.inf, first=0, last=10**9, balanced=False, near=0.008, exclude=(), d_ap=None):
    """Nearest-first rules by plain loops; rows."""
    x, label = source.x.astype(np.float64), dict(zip(source.entry_row, source.entry_label))
    here = source.entry_row[0]
    others = [r for r in source.entry_row if label[r] != label[row]]
    others.sort(key=lambda r: (np.linalg.norm(x[r - here] - x[row - here]), r))
    others = [r for r in others if np.linalg.norm(x[r - here] - x[row - here]) >= near and r not in exclude]
    others = [r for rank, r in enumerate(others) if first <= rank <= last]
    found, seen = [], set()
    for r in others:
        if np.linalg.norm(x[r - here] - x[row - here]) < lower or (balanced and label[r] in seen):
            continue
        seen.add(label[r])
        found.append(r)
    return found[:k] + [-1] * (k - len(found[:k]))


def hardest(source, row):
    x, here = source.x.astype(np.float64), source.entry_row[0]
    label = source.entry_label[row - here]
    own = [r for r in source.entry_row if source.entry_label[r - here] == label and r != row]
    return max((np.linalg.norm(x[r - here] - x[row - here]) for r in own), default=np.nan)


@pytest.mark.parametrize("stored", [None, 1, 3, 27])
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_ranked_rules_equal_plain_loops_whatever_is_stored(name, balanced, stored):
    source = HandRound(SIZES, unit(sum(SIZES)), stored)
    rows = source.entry_row[[0, 3, 5, 9, 20, 27, 5]]
    found = negatives(source, rows, 5, {"name": name, **RULES[name]}, class_balanced=balanced, exclude=[104, 111])
    for i, row in enumerate(rows):
        d = hardest(source, row)
        bounds = {
            "nearest": {},
            "rank-window": RULES["rank-window"],
            "absolute-margin": {"lower": d + 0.05},
            "relative-margin": {"lower": d * 1.1},
        }[name]
        expected = slow(source, row, 5, balanced=balanced, exclude=[104, 111], **bounds)
        if np.isnan(d) and as_rule({"name": name, **RULES[name]}).needs_positive:
            expected = [-1] * 5
        assert found.rows[i].tolist() == expected
        there = found.rows[i] >= 0
        x = source.x[found.rows[i][there] - 100] - source.x[row - 100]
        np.testing.assert_allclose(found.distance[i][there], np.linalg.norm(x, axis=1), rtol=1e-6)
        assert np.isnan(found.distance[i][~there]).all()
    assert found.table["full"] + found.table["short"] == len(rows)
    if stored in (1, 3) or (stored is None and name == "nearest"):
        assert (found.table["searched_again"] > 0) == (stored is not None)


def test_given_positives_take_the_place_of_the_hardest():
    source = HandRound([3, 3], on_a_line(0, 1, 3, 2, 4, 6))
    found = negatives(source, [100, 100, 100], 2, "absolute-margin", positive_rows=[101, 102, -1])
    assert found.rows.tolist() == [[103, 104], [104, 105], [-1, -1]]
    assert found.positive[:2].tolist() == [1, 3]
    assert found.table["short_because"] == {"no positive": 1}
    with pytest.raises(InputError, match="row 103 is no positive of row 100"):
        negatives(source, [100], 2, "absolute-margin", positive_rows=[103])


def test_relative_margins_are_a_share_of_the_positive_distance():
    source = HandRound([2, 3], on_a_line(0, 2, 1.9, 2.05, 2.2))
    assert negatives(source, [100], 3, {"name": "relative-margin", "margin": 0.05}).rows.tolist() == [[104, -1, -1]]
    assert negatives(source, [100], 3, {"name": "relative-margin", "margin": 0.0}).rows.tolist() == [[103, 104, -1]]


def count_by_reason(source, rows, k, rule, **more):
    return negatives(source, rows, k, rule, **more).table["short_because"]


def test_the_reasons_one_by_one():
    source = HandRound([2, 1, 3], on_a_line(0, 5, 1, 4, 4.001, 7))
    assert count_by_reason(source, [100], 4, "nearest") == {}
    assert count_by_reason(source, [100], 5, "nearest") == {"too few items of other classes": 1}
    assert count_by_reason(source, [102], 1, "absolute-margin") == {"no positive": 1}
    assert count_by_reason(source, [100], 3, {"name": "absolute-margin", "margin": 0.1}) == {"rule": 1}
    assert count_by_reason(source, [100], 4, "nearest", exclude=[103]) == {"left out": 1}
    assert count_by_reason(source, [100], 3, "nearest", class_balanced=True) == {"one of each class": 1}
    table = negatives(source, source.entry_row, 4, {"name": "absolute-margin", "margin": 0.1}).table
    assert table["short_because"] == {"no positive": 1, "rule": 2, "too few items of other classes": 3}
    assert (table["short"], table["full"], table["anchors"]) == (6, 0, 6)


def draws(source, row, rule, count, k=1, **more):
    """The lines of the first negative drawn in `count` steps."""
    return [negatives(source, [row], k, rule, step=step, **more).rows[0] - 100 for step in range(count)]


def test_distance_weighted_draws_in_proportion_to_the_inverse_density():
    source = HandRound([2, 3, 3, 3], unit(11, 6, seed=3))
    d = np.linalg.norm(source.x[2:].astype(np.float64) - source.x[0], axis=1)
    expected = 1 / (np.maximum(d, 0.5) ** 4 * (1 - np.maximum(d, 0.5) ** 2 / 4) ** 1.5)
    counts = np.bincount(np.ravel(draws(source, 100, "distance-weighted", 3000)), minlength=11)
    assert counts[:2].tolist() == [0, 0]
    assert chisquare(counts[2:], 3000 * expected / expected.sum()).pvalue > 1e-3


def test_what_is_drawn_does_not_come_back_and_depends_on_seed_step_and_row_alone():
    source = HandRound(SIZES, unit(sum(SIZES)))
    both = negatives(source, [100, 120], 6, "distance-weighted", seed=3, step=9)
    assert all(len(set(line)) == 6 for line in both.rows.tolist())
    alone = negatives(source, [120], 6, "distance-weighted", seed=3, step=9)
    assert alone.rows.tolist() == both.rows[1:].tolist()
    assert negatives(source, [120], 6, "distance-weighted", seed=3, step=8).rows.tolist() != alone.rows.tolist()
    window = {"name": "rank-window", "first": 1, "last": 12, "pick": "random"}
    first = negatives(source, source.entry_row, 3, window, step=4).rows
    assert first.tolist() == negatives(HandRound(SIZES, source.x, 2), source.entry_row, 3, window, step=4).rows.tolist()
    for row, line in zip(source.entry_row, first):
        assert set(line) <= set(slow(source, row, 12, first=1, last=12))


def bin_of(d, support, n):
    """Specs 1.1, to the letter."""
    edges = np.linspace(*support, n + 1)
    return sum(d > edges[j] for j in range(1, n))


@pytest.mark.parametrize("draw", ["member", "bin"])
def test_pads_draws_by_bins(draw):
    source = HandRound([2, 3, 3, 3], unit(11, 6, seed=3))
    p = (0.5, 0.0, 3.0, 1.5)
    d = np.linalg.norm(source.x[2:].astype(np.float64) - source.x[0], axis=1)
    number = np.array([bin_of(each, (0.8, 1.6), 4) for each in d])
    members = np.bincount(number, minlength=4)
    assert (members > 0).sum() >= 3
    expected = np.array([p[b] / (members[b] if draw == "bin" else 1) for b in number])
    rule = {"name": "pads-bins", "support": (0.8, 1.6), "p": p, "draw": draw}
    counts = np.bincount(np.ravel(draws(source, 100, rule, 2000)), minlength=11)[2:]
    assert (counts[expected == 0] == 0).all()
    some = expected > 0
    assert chisquare(counts[some], 2000 * expected[some] / expected.sum()).pvalue > 1e-3


def test_pads_bin_numbers_are_those_of_the_specs():
    rule = rules.get("pads-bins")(p=(1.0,) * 29)
    d = np.array([0, 0.144, 0.145, 0.24, 0.5, 0.63, 0.64, 1.35, 1.36, 2])
    assert rule.bins(d).tolist() == [0, 0, 1, 3, 8, 11, 12, 27, 28, 28]


def test_distance_weights_are_those_of_the_specs():
    rule = rules.get("distance-weighted")()
    d = np.array([[0.5, 0.8, 1.0, 1.2, 1.4]])
    found = rule.log_weight(d, np.ones((1, 5), bool), np.zeros(1), 128)[0]
    assert found == pytest.approx([91.37, 39.01, 17.98, 4.92, -0.311], abs=6e-3)


def test_class_balanced_draws_give_each_class_the_same_chance():
    source = HandRound([2, 1, 9], unit(12, 6, seed=1))
    rule = {"name": "pads-bins", "p": (1.0, 1.0)}
    drawn = np.array(draws(source, 100, rule, 800, k=2, class_balanced=True))
    assert (drawn[:, 1] >= 0).all()
    assert (np.sort((drawn == 2).sum(1)) == 1).all()  # one of each class
    assert chisquare([(drawn[:, 0] == 2).sum(), (drawn[:, 0] > 2).sum()]).pvalue > 1e-3


def test_a_pool_is_the_same_for_all_anchors_and_bounds_what_is_looked_at():
    source = HandRound(SIZES, unit(sum(SIZES)))
    found = negatives(source, source.entry_row, 3, "distance-weighted", pool=6)
    assert len(np.unique(found.rows[found.rows >= 0])) <= 6
    with pytest.raises(InputError, match="pool is for rules that draw"):
        negatives(source, source.entry_row, 3, pool=6)


def test_overlapping_classes_are_no_negatives():
    class Pairs:
        def between(self, first, second):
            return ((first == 0) & (second == 1)) | ((first == 1) & (second == 0))

    source = HandRound([2, 2, 2], on_a_line(0, 1, 2, 3, 5, 6), stored=2)
    found = negatives(source, [100, 102, 104], 2, overlap=Pairs())
    assert found.rows.tolist() == [[104, 105], [104, 105], [103, 102]]
    assert found.table["left_out"]["overlapping classes"] == 4


def test_what_is_looked_at_at_once_changes_nothing(monkeypatch):
    source = HandRound(SIZES, unit(sum(SIZES)), stored=2)
    chosen = [negatives(source, source.entry_row, 4, rule).rows for rule in ("nearest", "distance-weighted")]
    monkeypatch.setattr(lists_module, "LISTED_AT_ONCE", 7)
    monkeypatch.setattr(draws_module, "DISTANCES_AT_ONCE", 60)
    monkeypatch.setattr(draws_module, "ITEMS_AT_ONCE", 5)
    for rule, expected in zip(("nearest", "distance-weighted"), chosen):
        assert negatives(source, source.entry_row, 4, rule).rows.tolist() == expected.tolist()


def test_rows_of_elsewhere_and_rules_of_no_name_are_refused():
    source = HandRound([2, 2], on_a_line(0, 1, 2, 3))
    with pytest.raises(InputError, match=r"1 of the anchors are not in round 1 \(row 99\)"):
        negatives(source, [100, 99], 1)
    with pytest.raises(UnknownNameError, match="Did you mean 'semi-hard'"):
        negatives(source, [100], 1, "semihard")
    with pytest.raises(UnknownNameError, match="'margn'"):
        negatives(source, [100], 1, {"name": "semi-hard", "margn": 1})
    with pytest.raises(InputError, match="descriptors of length 1"):
        negatives(source, [100], 1, "distance-weighted")
    assert negatives(source, np.zeros(0, np.int64), 3).rows.shape == (0, 3)


def test_a_real_round_with_views_gives_the_same_from_lists_and_from_the_search(tmp_path):
    from hardmine.pipeline.views import Views

    store = make_store(tmp_path / "store", (3, 1, 4, 2, 2))
    kept = {"views": Views(per_class=3), "neighbours": 3}
    mined = mine(store, tmp_path / "mining", Tiny(), derive=("knn",), **kept).round
    bare = mine(store, tmp_path / "bare", Tiny(), derive=(), **kept).round
    for rule in ("nearest", "absolute-margin", "semi-hard"):
        one, two = (negatives(each, store.rows(), 6, rule) for each in (mined, bare))
        np.testing.assert_array_equal(one.rows, two.rows)
    assert not np.isnan(one.positive).any()  # a class of one item has its turned views
