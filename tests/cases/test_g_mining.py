"""bugcases.md, section G, as far as mined rounds and negatives from them go."""

import numpy as np
import pytest
from hand_round import HandRound, on_a_line, unit
from mining_world import Spoilt, Tiny, make_store

import hardmine.mining.embed as embed_module
from hardmine.errors import NumericalError
from hardmine.mining.audit import audit
from hardmine.mining.mine import mine
from hardmine.mining.negative_rules import rules
from hardmine.mining.negatives import negatives
from hardmine.store.rounds import MiningStore


def test_g80_the_same_bytes_in_two_classes_are_a_conflict_and_no_negatives(tmp_path):
    store = make_store(tmp_path / "store", (3, 1, 4, 2, 2), constant=(4, 9))  # black patches in two classes
    mined = mine(store, tmp_path / "mining", Tiny(), derive=("knn",)).round
    assert audit(store, mined).conflicts.tolist() == [[4, 9]]
    found = negatives(mined, np.array([4, 9]), 3)
    assert not np.isin(found.rows, [4, 9]).any()
    assert found.table["left_out"]["near duplicates"] == 2
    assert negatives(mined, np.array([4, 9]), 1, near_duplicate=0.0).rows.tolist() == [[9], [4]]


def test_g81_collapsed_descriptors_are_not_mined_and_the_audit_says_so(tmp_path):
    store = make_store(tmp_path / "store")
    with pytest.raises(NumericalError, match="have collapsed"):
        mine(store, tmp_path / "mining", Spoilt("constant"))
    allowed = mine(store, tmp_path / "mining", Spoilt("constant"), derive=("knn",), allow_collapsed=True).round
    assert audit(store, allowed).counts()["collapsed"] is True


def test_g82_distance_weights_hold_in_512_dimensions_and_beyond_1_4():
    x = np.eye(512, dtype=np.float32)[:12]
    x[6:] = -x[:6] + 0.02 * unit(6, 512)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    source = HandRound([2] * 6, x)
    found = negatives(source, source.entry_row, 4, "distance-weighted")
    assert (found.rows >= 0).all()
    assert (found.distance > 1.41).all()
    weights = rules.get("distance-weighted")().log_weight(
        np.array([[1.5, 2.0, 0.0]]), np.ones((1, 3), bool), np.zeros(1), 512
    )
    assert np.isfinite(weights).all()
    cut = negatives(source, source.entry_row, 4, {"name": "distance-weighted", "cutoff": 1.4})
    assert cut.table["none"] == 12
    assert cut.table["short_because"] == {"rule": 12}
    one = negatives(HandRound([4], unit(4)), [100, 101], 2, "distance-weighted")
    assert (one.rows == -1).all()
    assert one.table["short_because"] == {"too few items of other classes": 2}


@pytest.mark.parametrize(
    ("d_ap", "margin", "expected"),
    [(2, 3, {103, 104}), (2, 1.5, {103}), (1, 2, {102}), (4, 2, {105}), (1, 0.5, set()), (9, 5, set())],
)
def test_g85_semi_hard_is_between_the_positive_and_the_margin(d_ap, margin, expected):
    # the anchor at 0; negatives at 2, 3, 4 and 5: distances equal to d_ap or to d_ap + margin are not semi-hard
    source = HandRound([2, 4], on_a_line(0, d_ap, 2, 3, 4, 5))
    found = negatives(source, [100], 4, {"name": "semi-hard", "margin": margin}).rows[0]
    assert set(found[found >= 0].tolist()) == expected


def test_g86_a_class_of_one_item_is_skipped_and_counted():
    source = HandRound([1, 2, 2], unit(5))
    for rule in ("semi-hard", "absolute-margin", "relative-margin"):
        found = negatives(source, [100, 101], 1, {"name": rule, "margin": 0.01} if rule != "semi-hard" else rule)
        assert found.rows[0, 0] == -1
        assert np.isnan(found.positive[0])
        assert found.table["short_because"]["no positive"] == 1


def test_g88_more_candidates_are_fetched_and_the_short_anchors_counted():
    x = np.concatenate([unit(40, 8)[:, None] + 0.02 * unit(160, 8, seed=1).reshape(40, 4, 8)]).reshape(160, 8)
    source = HandRound([4] * 40, x, stored=15)
    found = negatives(source, source.entry_row, 15, {"name": "relative-margin", "margin": 0.05})
    assert found.table["full"] == 160
    far = negatives(source, source.entry_row, 15, {"name": "absolute-margin", "margin": 1.7})
    assert far.table["searched_again"] == 160  # none of the stored 15 is so far away
    distance = np.linalg.norm(x[:, None].astype(np.float64) - x[None], axis=2)
    other = source.entry_label[:, None] != source.entry_label[None]
    fitting = (other & (distance >= far.positive[:, None] + 1.7)).sum(1)
    assert far.table["short"] == (fitting < 15).sum() > 0
    assert far.table["short_because"] == {"rule": int((fitting < 15).sum())}
    assert ((far.rows >= 0).sum(1) == np.minimum(fitting, 15)).all()


def test_g90_another_choice_of_negatives_embeds_nothing(tmp_path, monkeypatch):
    store = make_store(tmp_path / "store")
    mine(store, tmp_path / "mining", Tiny(), derive=("knn",), neighbours=3)

    def never(*args, **kwargs):
        raise AssertionError("a network ran")

    monkeypatch.setattr(embed_module, "_embed", never)
    source = MiningStore(tmp_path / "mining").open("latest")
    for count in (1, 3, 7):
        assert (negatives(source, store.rows(), count).rows[:, 0] >= 0).all()


def test_g91_more_negatives_than_there_are_items_are_padded_and_said():
    source = HandRound([10, 10], unit(20))
    found = negatives(source, source.entry_row, 50)
    assert ((found.rows >= 0).sum(1) == 10).all()
    assert "50 negatives were asked for, but no anchor has more than 10" in found.table["messages"][0]
    assert found.table["short_because"] == {"too few items of other classes": 20}
