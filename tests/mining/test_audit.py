"""The audit on stores with planted faults, its scores against plain loops, and exclusion lists."""

import json

import numpy as np
import pytest
from hand_round import HandRound, unit
from mining_world import Patches, Tiny
from PIL import Image

import hardmine.mining.label_noise as label_noise_module
from hardmine.errors import InputError, MissingError, StoreError, UnknownNameError
from hardmine.mining.audit import AuditOptions, audit
from hardmine.mining.class_distances import StoredDistances
from hardmine.mining.derive import class_pair_distances
from hardmine.mining.entries import Entries
from hardmine.mining.exclusions import Exclusions, KeptDistances, read_exclusions, without
from hardmine.mining.label_noise import label_noise, mixed_classes, outlier_scores
from hardmine.mining.mine import mine
from hardmine.pipeline.ingest import ingest
from hardmine.protocols.audit import audit_store
from hardmine.store.patches import PatchStore
from hardmine.store.search import nearest

assert Patches  # registers the reader of test patches


def store_of(path, pixels, labels):
    source = path.with_name(path.name + "-source")
    source.mkdir()
    np.save(source / "patches.npy", pixels)
    (source / "labels.json").write_text(json.dumps([int(c) for c in labels]))
    ingest("test-patches", source, path)
    return PatchStore.open(path)


@pytest.fixture
def planted(tmp_path):
    """A store of 8 classes of 5 look-alikes, with planted faults: equal pixels in one class (items 0, 1), under two
    labels (10, 15), near duplicates under two labels (20, 25); and a round of it."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (8, 12, 12))
    labels = np.repeat(np.arange(8), 5)
    pixels = np.clip(base[labels] + rng.normal(0, 25, (40, 12, 12)), 0, 255).astype(np.uint8)
    pixels[1] = pixels[0]
    pixels[15] = pixels[10]
    pixels[25] = pixels[20]
    pixels[25, 5, 5] ^= 1
    store = store_of(tmp_path / "store", pixels, labels)
    mined = mine(store, tmp_path / "mining", Tiny(), derive=("knn",))
    return store, mined.round, tmp_path


def test_what_nothing_speaks_against_is_no_suspect(planted, tmp_path):
    """However many are asked for: neither items whose neighbours agree, nor one that is alone in its class."""
    store, source, _ = planted
    found = audit(store, source, AuditOptions(near=0.01, suspects=1000))
    scored = dict(zip(found.rows.tolist(), found.noise.tolist()))
    assert set(found.suspects.tolist()) == {row for row, noise in scored.items() if noise > 0}
    assert 0 < len(found.suspects) < len(store)
    alone = store_of(
        tmp_path / "alone", np.random.default_rng(1).integers(0, 256, (7, 12, 12), np.uint8), [0] * 6 + [1]
    )
    written = audit_store(
        alone.path,
        mine(alone, tmp_path / "m", Tiny()).round.folder.parents[1],
        out=tmp_path / "out",
        options={"suspects": 7},
    )
    assert written["rows to exclude"] == written["suspected labels"] < 7
    assert "NaN" not in (tmp_path / "out/audit.json").read_text()
    assert 6 not in [each["row"] for each in json.loads((tmp_path / "out/exclude.json").read_text())["rows"]]


def test_planted_faults_are_found_and_named(planted):
    store, source, _ = planted
    found = audit(store, source, AuditOptions(near=0.01))
    assert [g.tolist() for g in found.duplicates] == [[0, 1], [10, 15]]
    assert found.near.tolist() == [[20, 25]]
    assert found.conflicts.tolist() == [[10, 15], [20, 25]]
    assert not found.collapsed
    assert found.spread == pytest.approx(source.attrs["spread"], rel=1e-5)
    assert found.counts()["of them within one class"] == 1
    assert found.exclusions().reasons.keys() == {1, 10, 15, 20, 25}
    assert "row 15 under another label" in found.exclusions().reasons[10]
    facts = json.loads(json.dumps(found.json()))
    assert [item["source"] for item in facts["duplicates"][0]] == ["item 0", "item 1"]
    assert facts["conflicts"][0][1] | {"split": "all"} == facts["conflicts"][0][1]
    assert facts["near_duplicates"][0]["distance"] < 0.01
    bare = mine(store, source.folder.parent.parent.with_name("bare"), Tiny(), derive=()).round
    assert audit(store, bare, AuditOptions(near=0.01)).json() == found.json()  # the same without stored lists


def test_the_stage_writes_a_report_sheets_and_a_list(planted):
    store, source, root = planted
    facts = audit_store(store.path, root / "mining", out=root / "out", options={"near": 0.01, "suspects": 3})
    assert facts["pairs under two labels"] == 2
    names = {path.name for path in (root / "out").iterdir()}
    assert {"audit.json", "exclude.json", "conflicts.png", "duplicates.png", "near-duplicates.png"} <= names
    assert "suspects.png" in names
    with Image.open(root / "out" / "conflicts.png") as sheet:
        assert sheet.width > 800
        assert len(np.unique(np.asarray(sheet.convert("L")))) > 50
    assert json.loads((root / "out" / "audit.json").read_text())["round"] == source.number
    listed = read_exclusions(root / "out" / "exclude.json", store)
    assert facts["rows to exclude"] == len(listed.rows) >= 5
    assert "written" not in audit_store(store.path, root / "mining")
    with pytest.raises(UnknownNameError, match="'neer'"):
        audit_store(store.path, root / "mining", options={"neer": 1})
    with pytest.raises(MissingError, match="no round 9"):
        audit_store(store.path, root / "mining", 9)


def test_a_round_of_another_store_is_refused(planted, tmp_path):
    other = store_of(tmp_path / "other", np.zeros((4, 12, 12), np.uint8), [0, 0, 1, 1])
    with pytest.raises(StoreError, match=r"round 1 was mined from the patch store .*other is"):
        audit(other, planted[1])


def lists_of(x, k=6):
    found = nearest(x, np.arange(len(x)), k)
    return found.rows, found.distance


def outliers_of(x, labels):
    others = nearest(x, np.arange(len(x)), 5, labels=labels)
    return outlier_scores(x, labels, others.distance)


def test_label_noise_equals_a_plain_loop():
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, 12, 50))
    labels[-1] = 12  # alone in its class
    x = unit(50)
    rows, distance = lists_of(x)
    outlier = outliers_of(x, labels)
    score, order = label_noise(rows, distance, labels, outlier, asked=5)
    for i in range(50):
        asked = min(5, np.count_nonzero(labels == labels[i]) - 1)
        if asked == 0:
            assert np.isnan(score[i])
            continue
        w = np.exp(-((distance[i, :asked] / distance[i, asked - 1]) ** 2))
        wrong = labels[rows[i, :asked]] != labels[i]
        assert score[i] == pytest.approx((w * wrong).sum() / w.sum(), rel=1e-6)
    expected = sorted(range(50), key=lambda i: (np.isnan(score[i]), -score[i], -outlier[i], i))
    with_score = 50 - np.isnan(score).sum()
    assert order[:with_score].tolist() == expected[:with_score]
    assert np.isnan(score[order[with_score:]]).all()


def test_planted_label_swaps_come_first():
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(30), 12)
    x = unit(30, 16)[labels] + 0.22 * rng.normal(size=(360, 16)).astype(np.float32)
    x = x.astype(np.float32)
    planted = rng.choice(360, 18, replace=False)
    noisy = labels.copy()
    noisy[planted] = (labels[planted] + rng.integers(1, 30, 18)) % 30
    _, order = label_noise(*lists_of(x, 10), noisy, outliers_of(x, noisy))
    precision = np.isin(order[:18], planted).mean()
    assert precision >= 0.7  # chance is 0.05


@pytest.mark.parametrize("large", [2, 512])
def test_outlier_scores_equal_a_plain_loop(large, monkeypatch):
    monkeypatch.setattr(label_noise_module, "LARGE_CLASS", large)
    sizes = [4, 1, 3, 6]
    source = HandRound(sizes, unit(14, 5))
    labels, x = source.entry_label, source.x.astype(np.float64)
    score = outliers_of(source.x, labels)
    for i in range(14):
        gap = np.linalg.norm(x - x[i], axis=1)
        own = sorted(gap[j] for j in range(14) if labels[j] == labels[i] and j != i)[:3]
        other = np.mean(sorted(gap[labels != labels[i]])[:3])
        if own:
            assert score[i] == pytest.approx((np.mean(own) - other) / max(np.mean(own), other), rel=1e-5)
        else:
            assert np.isnan(score[i])


def test_mixed_classes_equal_a_plain_loop():
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(5), 6)
    centre = unit(5, 8)
    centre[1] = centre[0]
    x = (centre[labels] + 0.2 * rng.normal(size=(30, 8))).astype(np.float32)
    rows, _ = lists_of(x, 4)
    pairs, share = mixed_classes(rows, labels, 0.2)
    part = np.zeros((5, 5))
    for i in range(30):
        for j in rows[i, :4]:
            part[labels[i], labels[j]] += 1 / 24
    expected = {(a, b): min(part[a, b], part[b, a]) for a in range(5) for b in range(a + 1, 5)}
    expected = {pair: value for pair, value in expected.items() if value >= 0.2}
    assert (0, 1) in expected
    assert {tuple(p): pytest.approx(s) for p, s in zip(pairs.tolist(), share)} == expected


# Exclusion lists


def test_a_list_is_read_back_and_belongs_to_one_store(planted):
    store, _, root = planted
    Exclusions(store.fingerprint, {7: "blurred", 3: "wrong"}).write(root / "list.json")
    found = read_exclusions(root / "list.json", store)
    assert found.rows.tolist() == [3, 7]
    assert found.reasons[7] == "blurred"
    Exclusions("f" * 64, {3: "wrong"}).write(root / "foreign.json")
    with pytest.raises(StoreError, match=r"was made for the patch store ffffffffffff"):
        read_exclusions(root / "foreign.json", store)
    Exclusions(store.fingerprint, {900: "wrong"}).write(root / "far.json")
    with pytest.raises(InputError, match="names row 900"):
        read_exclusions(root / "far.json", store)
    (root / "none.json").write_text("[1, 2]")
    with pytest.raises(InputError, match="is no exclusion list"):
        read_exclusions(root / "none.json", store)
    with pytest.raises(MissingError, match="no exclusion list at"):
        read_exclusions(root / "missing.json", store)


def test_distances_among_the_entries_left_are_looked_up_among_all():
    offsets = np.array([0, 4, 4, 9, 11])
    entries = Entries(np.arange(11) + 20, np.zeros(11, np.int16), offsets)
    x = unit(11)
    left, kept = without(entries, np.array([21, 24, 28, 99]))
    assert left.row.tolist() == [20, 22, 23, 25, 26, 27, 29, 30]
    assert left.offsets.tolist() == [0, 3, 3, 6, 8]
    stored = StoredDistances(*class_pair_distances(x, offsets), offsets)
    found = KeptDistances(stored, offsets, left.offsets, kept)
    own = StoredDistances(*class_pair_distances(x[kept], left.offsets), left.offsets)
    for classes, slot in (([0, 2, 3], [1, 2, 0]), ([2], [0]), ([3, 0], [1, 2])):
        args = (np.array(classes), np.array(slot))
        np.testing.assert_array_equal(found.from_anchor(*args), own.from_anchor(*args))
    with pytest.raises(InputError, match="all 11 entries"):
        without(entries, entries.row)
