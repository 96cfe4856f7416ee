from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError, UnknownNameError
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Candidates
from hardmine.pipeline.splits import NONE, Items, Splits, assign, parse_split, recorded_split
from hardmine.store.patches import PatchStore

LABEL = np.repeat(np.arange(60), 3)


def codes(text, seed=0, **items):
    made = assign(parse_split(text, seed), Items(**{"label": LABEL, **items}))
    assert made.names[:2] == ["train", "val"]
    return made.codes


def sides(codes, group):
    """Which splits each group has items in."""
    return [set(codes[group == each].tolist()) for each in np.unique(group)]


def test_by_class_draws_the_fraction_and_follows_the_seed():
    drawn = codes("by-class:0.8")
    assert sum(side == {0} for side in sides(drawn, LABEL)) == 48
    assert sum(side == {1} for side in sides(drawn, LABEL)) == 12
    assert np.array_equal(drawn, codes("by-class:0.8"))
    assert not np.array_equal(drawn, codes("by-class:0.8", seed=1))


def test_by_image_keeps_every_photograph_on_one_side():
    image = LABEL // 6 * 10  # ten photographs of six classes each
    found = sides(codes("by-image:0.7", image=image), image)
    assert all(len(side) == 1 for side in found)
    assert sum(side == {0} for side in found) == 7


def test_by_image_keeps_photographs_that_share_a_class_together():
    image = np.arange(180) % 3 + 3 * (LABEL // 20)  # three scenes, each seen in three photographs
    assert sorted(map(sorted, sides(codes("by-image:0.67", 3, image=image), LABEL // 20))) == [[0], [0], [1]]


@pytest.mark.parametrize(("fraction", "kept"), [(0.85, {1: 1, 2: 1, 3: 2, 20: 17}), (0.5, {1: 1, 2: 1, 3: 1, 20: 10})])
def test_by_item_keeps_the_fraction_of_every_class_and_at_least_one(fraction, kept):
    sizes = list(kept)
    label = np.random.default_rng(0).permutation(np.repeat(sizes, sizes))
    drawn = codes(f"by-item:{fraction}", label=label)
    assert {size: int((drawn[label == size] == 0).sum()) for size in sizes} == kept
    assert not np.array_equal(drawn, codes(f"by-item:{fraction}", 1, label=label))


def test_column_gives_the_dataset_s_own_splits_in_their_usual_order():
    official = np.array([b"query", b"", b"zebra", b"train", b"gallery", b"ant"] * 30)
    made = assign(parse_split("column", 0), Items(LABEL, official=official))
    assert made.names == ["train", "query", "gallery", "ant", "zebra"]
    assert made.codes[:6].tolist() == [1, NONE, 4, 0, 2, 3]
    with pytest.raises(InputError, match="does not say which split"):
        assign(parse_split("column", 0), Items(LABEL))


@pytest.mark.parametrize("rule", ["by-class:0.8", "by-item:0.5", "by-image:0.5"])
def test_a_rule_divides_what_the_dataset_would_train_on_and_nothing_else(rule):
    official = np.where(LABEL < 40, b"train", np.where(LABEL < 50, b"test", b""))
    made = assign(parse_split(rule, 0), Items(LABEL, LABEL // 4, official))
    assert made.names == ["train", "val", "test"]
    assert set(made.codes[LABEL < 40].tolist()) == {0, 1}
    assert set(made.codes[(LABEL >= 40) & (LABEL < 50)].tolist()) == {2}
    assert set(made.codes[LABEL >= 50].tolist()) == {NONE}
    if rule == "by-class:0.8":
        assert sum(side == {0} for side in sides(made.codes[LABEL < 40], LABEL[LABEL < 40])) == 32
    with pytest.raises(InputError, match="have no train to divide"):
        assign(parse_split(rule, 0), Items(LABEL, LABEL // 4, np.full(180, b"query")))


@pytest.mark.parametrize("rule", ["by-class:0.8", "by-image:0.8", "by-item:0.67"])
def test_items_that_come_later_keep_to_what_is_there(rule):
    split, image = parse_split(rule, 5), LABEL // 6
    first = assign(split, Items(LABEL, image))
    label = np.concatenate([LABEL, [3, 3, 3, 59], np.repeat(np.arange(60, 80), 3)])
    image = np.concatenate([image, [0, 0, 0, 9], np.repeat(np.arange(10, 20), 6)])
    then = assign(split, Items(label, image), first)
    assert np.array_equal(then.codes[:180], first.codes)
    if rule != "by-item:0.67":
        group = label if rule == "by-class:0.8" else image
        found = sides(then.codes, group)
        assert all(len(side) == 1 for side in found)
        assert sum(side == {0} for side in found) == round(0.8 * len(found))
    else:
        train = np.bincount(label[then.codes == 0])
        assert train[3] == 4  # of six
        assert train[60:].tolist() == [2] * 20


def test_photographs_of_both_sides_cannot_be_joined():
    there = Splits(["train", "val"], np.array([0, 1], np.uint8))
    with pytest.raises(InputError, match="join photographs that are on both sides"):
        assign(parse_split("by-image:0.5", 0), Items(np.array([0, 1, 2, 2]), np.array([0, 1, 0, 1])), there)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("by-clas:0.8", UnknownNameError, "Did you mean 'by-class'"),
        ("by-image:2", InputError, "by-image:FRACTION, a fraction of the photographs"),
        ("by-class", InputError, "by-class:FRACTION"),
        ("column:0.5", UnknownNameError, "Did you mean 'column'"),
    ],
)
def test_a_rule_that_cannot_be_read(text, error, message):
    with pytest.raises(error, match=message):
        parse_split(text, 0)


@pytest.mark.parametrize("text", ["by-class:0.8", "by-item:0.123456789", "column", None])
def test_a_rule_is_read_back_from_what_was_recorded(text):
    split = parse_split(text, 7)
    assert recorded_split(None if split is None else str(split)) == split


def test_an_empty_side_or_no_photographs_is_an_error():
    with pytest.raises(InputError, match=r"of 2 photographs .* leaves one side empty"):
        codes("by-image:0.9", image=LABEL // 30)
    with pytest.raises(InputError, match="does not say which photograph"):
        codes("by-image:0.9")
    with pytest.raises(InputError, match="no class is large enough"):
        codes("by-item:0.5", label=np.arange(180))


def test_a_store_has_the_official_splits_unless_another_rule_is_asked_for(tmp_path: Path, made_up: Callable) -> None:
    official = np.array([b"train", b"train", b"test", b"train", b"", b"test", b"train"])
    label, source = np.array([b"b", b"a", b"c", b"a", b"a", b"c", b"b"]), np.array([b"%d" % i for i in range(7)])
    made_up(candidates=lambda self: Candidates(label, source, (4, 5), split=official))
    report = ingest("made-up", tmp_path, tmp_path / "own")
    store = PatchStore.open(tmp_path / "own")
    assert store.split_names == ["train", "test"]
    assert store.source[store.rows("test")].tolist() == [b"2", b"5"]
    assert store.source[store.rows("train")].tolist() == [b"1", b"3", b"0", b"6"]
    assert (report.counts["patches in test"], report.counts["patches in no split"]) == (2, 1)
    assert not ingest("made-up", tmp_path, tmp_path / "own", split="column").written
    ingest("made-up", tmp_path, tmp_path / "half", split="by-class:0.5")
    store = PatchStore.open(tmp_path / "half")
    assert store.split_names == ["train", "val", "test"]
    assert [len(store.rows(name)) for name in store.split_names] == [2, 2, 2]
