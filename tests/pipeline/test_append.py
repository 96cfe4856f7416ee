"""Append: nothing that is there moves, what is new joins it, and a kill at any moment leaves the old store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.pipeline.append import append
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Candidates, Pair
from hardmine.store.patches import PatchStore

LABELS = np.array([b"cat", b"dog", b"cat", b"emu", b"dog"])
MORE = np.array([b"cat", b"ape", b"dog", b"cat", b"emu", b"cat", b"dog", b"ape"])  # what LABELS became
WHERE = [0, 2, 3, 4, 6]  # the places in MORE of the five that were there before


def names(count: int, where: list[int] | None = None) -> np.ndarray:
    return np.array([b"item %d" % i for i in (range(count) if where is None else where)])


def pixels_of(source: bytes) -> np.ndarray:
    return np.random.default_rng(int(source.split()[1])).integers(0, 256, (4, 5), dtype=np.uint8)


@pytest.fixture
def grown(tmp_path: Path, made_up: Callable) -> Callable[..., PatchStore]:
    """before(**ingest arguments) ingests LABELS; the reader then lists MORE, of which those are WHERE."""

    def listing(
        source: np.ndarray, label: np.ndarray, image: np.ndarray, bad: dict[int, str], **attributes: object
    ) -> None:
        def candidates(self: object) -> Candidates:
            pairs = attributes.get("pairs", {})
            return Candidates(label, source, (4, 5), {"image": image}, pairs, split=attributes.get("split"))

        made_up(
            candidates=candidates,
            source=source,
            raw_label=label,
            bad={i: bad[int(s.split()[1])] for i, s in enumerate(source) if int(s.split()[1]) in bad},
            pixels=staticmethod(lambda number: pixels_of(source[number])),
        )

    def before(
        bad: dict[int, str] | None = None, bad_now: dict[int, str] | None = None, **arguments: object
    ) -> PatchStore:
        first, then = arguments.pop("first", {}), arguments.pop("then", {})
        listing(names(5, WHERE), LABELS, np.array([7, 7, 8, 9, 8]), bad or {}, **first)
        ingest("made-up", tmp_path, tmp_path / "s", shard_rows=2, **arguments)
        listing(names(8), MORE, np.array([3, 0, 3, 4, 5, 1, 4, 0]), bad_now or {}, **then)
        return PatchStore.open(tmp_path / "s")

    return before


def test_nothing_moves_and_the_new_joins(tmp_path: Path, grown: Callable) -> None:
    old = grown()
    label, source, pixels = old.label.copy(), old.source.tolist(), old.gather(np.arange(5))
    report = append("made-up", tmp_path, tmp_path / "s")
    new = PatchStore.open(tmp_path / "s")
    assert new.label[:5].tolist() == label.tolist() == [0, 0, 1, 1, 2]
    assert new.source[:5].tolist() == source
    assert np.array_equal(new.gather(np.arange(5)), pixels)
    assert new.shard_fingerprints[:3] == old.shard_fingerprints
    assert new.source[5:].tolist() == [b"item 5", b"item 1", b"item 7"]  # by label: cat, then ape, which is number 3
    assert new.label[5:].tolist() == [0, 3, 3]
    assert new.raw_label[5:].tolist() == [b"cat", b"ape", b"ape"]
    assert np.array_equal(new.gather(np.arange(8)), np.stack([pixels_of(s) for s in new.source]))
    assert [shard.rows for shard in new.manifest.shards] == [2, 2, 1, 2, 1]
    assert new.class_order[new.class_offsets[0] : new.class_offsets[1]].tolist() == [0, 1, 5]
    assert new.fingerprint != old.fingerprint
    assert report.counts == {
        "items listed": 8,
        "items there already": 5,
        "patches added": 3,
        "items rejected": 0,
        "sources not listed": 0,
        "classes added": 1,
        "patches in the store": 8,
    }
    assert new.manifest.counts["patches kept"] == new.manifest.counts["items listed"] == 8
    assert new.verify() == []
    assert np.array_equal(old.gather(np.arange(5)), pixels)  # for those who had it open
    assert old.column("image").tolist() == [7, 8, 7, 8, 9]


def test_again_there_is_nothing_to_do(tmp_path: Path, grown: Callable) -> None:
    grown(bad_now={5: "dull"})
    append("made-up", tmp_path, tmp_path / "s")
    files = {p: p.read_bytes() for p in (tmp_path / "s").rglob("*.*") if p.is_file() and p.name != ".lock"}
    report = append("made-up", tmp_path, tmp_path / "s")
    assert not report.written
    assert report.counts["patches added"] == 0
    assert report.reasons == {"dull": 1}
    assert files == {p: p.read_bytes() for p in (tmp_path / "s").rglob("*.*") if p.is_file() and p.name != ".lock"}


def test_a_photograph_that_is_known_keeps_its_number(tmp_path: Path, grown: Callable) -> None:
    """Known items show that 3 was 7, 4 was 8, 5 was 9; photographs 0 and 1 are new and get 10 and 11."""
    grown(bad={2: "dull"})
    append("made-up", tmp_path, tmp_path / "s")
    new = PatchStore.open(tmp_path / "s")
    image = dict(zip(new.source.tolist(), new.column("image").tolist()))
    assert image == {
        b"item 0": 7, b"item 2": 7, b"item 3": 8, b"item 4": 9, b"item 6": 8,
        b"item 5": 11, b"item 1": 10, b"item 7": 10,
    }  # fmt: skip


def test_rejected_items_are_tried_again_and_pairs_are_added(tmp_path: Path, grown: Callable) -> None:
    first = Pair(np.array([0, 1]), np.array([1, 2]), np.array([False, False]))  # items 0-2, 2-3
    more = Pair(np.array([0, 2, 0, 1]), np.array([2, 3, 5, 7]), np.array([False, False, True, True]))
    other = Pair(np.array([0]), np.array([3]), np.array([True]))
    old = grown(
        bad={2: "dull", 6: "dark"},
        bad_now={6: "darker", 7: "grim"},
        first={"pairs": {"a": first}},
        then={"pairs": {"a": more, "b": other}},
    )
    assert (len(old.pairs("a").first), old.pairs("a").lost) == (0, 2)
    append("made-up", tmp_path, tmp_path / "s")
    new = PatchStore.open(tmp_path / "s")
    row = {source: i for i, source in enumerate(new.source.tolist())}
    assert sorted(new.rejects()) == [(b"item 6", "darker"), (b"item 7", "grim")]
    assert b"item 2" in row
    named = [(new.source[a], new.source[b]) for a, b in zip(new.pairs("a").first, new.pairs("a").second)]
    assert named == [(b"item 0", b"item 2"), (b"item 2", b"item 3"), (b"item 0", b"item 5")]
    assert new.pairs("a").match.tolist() == [False, False, True]
    assert new.pairs("a").lost == 1
    assert new.pairs("b").first.tolist() == [row[b"item 0"]]
    assert new.manifest.counts["items rejected"] == 2
    assert new.manifest.counts["items listed"] == 8


def test_class_limits_hold_for_the_whole(tmp_path: Path, grown: Callable) -> None:
    old = grown(min_per_class=2, max_per_class=2)
    assert dict(zip(old.source.tolist(), old.used.tolist()))[b"item 4"] is False  # the only emu
    append("made-up", tmp_path, tmp_path / "s")
    new = PatchStore.open(tmp_path / "s")
    assert dict(zip(new.source.tolist(), new.used.tolist()))[b"item 5"] is False  # the third cat
    assert new.used.tolist() == [True, True, True, True, False, False, True, True]


def test_classes_keep_their_split_and_new_ones_are_drawn(tmp_path: Path, grown: Callable) -> None:
    old = grown(split="by-class:0.6", seed=1)
    append("made-up", tmp_path, tmp_path / "s")
    new = PatchStore.open(tmp_path / "s")
    assert np.array_equal(new.column("split")[:5], old.column("split"))
    sides = {label: set(new.column("split")[new.label == label].tolist()) for label in range(4)}
    assert all(len(side) == 1 for side in sides.values())
    assert len(new.rows("train")) + len(new.rows("val")) == 8


def test_the_dataset_s_own_splits_go_on(tmp_path: Path, grown: Callable) -> None:
    before = np.array([b"train", b"query", b"train", b"", b"query"])
    now = np.array([b"", b"gallery", b"", b"", b"", b"train", b"", b""])
    grown(first={"split": before}, then={"split": now})
    append("made-up", tmp_path, tmp_path / "s")
    new = PatchStore.open(tmp_path / "s")
    assert new.split_names == ["train", "query", "gallery"]
    assert new.source[new.rows("gallery")].tolist() == [b"item 1"]
    assert sorted(new.source[new.rows("train")].tolist()) == [b"item 0", b"item 3", b"item 5"]
    assert new.manifest.counts["patches in no split"] == 2


def test_what_does_not_fit_is_refused(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    with pytest.raises(MissingError, match="no patch store"):
        append("made-up", tmp_path, tmp_path / "s")
    assert not (tmp_path / "s").exists()
    numbers = np.array([1, 1, 2, 2])
    made_up(raw_label=numbers)
    ingest("made-up", tmp_path, tmp_path / "s")
    made_up(raw_label=np.array([1, 1, 2, 3]))
    with pytest.raises(InputError, match=r"item 3 is of class 3 here, and of class 2 .*another data set"):
        append("made-up", tmp_path, tmp_path / "s")
    made_up(raw_label=numbers, source=np.array([b"x0", b"x1", b"x2", b"x3"]))
    with pytest.raises(InputError, match="nothing says that both mean the same classes"):
        append("made-up", tmp_path, tmp_path / "s")
    made_up(raw_label=np.array([b"1", b"1", b"2", b"2"]))
    with pytest.raises(InputError, match="raw labels are"):
        append("made-up", tmp_path, tmp_path / "s")
    made_up(raw_label=np.array([1, 1, 2, 2, 2]), candidates=lambda self: Candidates(numbers, names(4), (4, 5)))
    with pytest.raises(InputError, match=r"columns \[\], .*\['image'\]"):
        append("made-up", tmp_path, tmp_path / "s")
    made_up(raw_label=numbers, candidates=lambda self: Candidates(numbers, names(4), (4, 6), {"image": numbers}))
    with pytest.raises(InputError, match=r"\(4, 6\).*\(4, 5\)"):
        append("made-up", tmp_path, tmp_path / "s")


@pytest.mark.parametrize(
    "moment",
    ["pipeline.append.commit_append", "pipeline.append_commit.write_atomic", "pipeline.append._end"],
)
def test_killed_the_old_store_stands_and_the_same_call_finishes(
    tmp_path: Path, grown: Callable, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    grown()
    append("made-up", tmp_path, tmp_path / "s")
    undisturbed = content(tmp_path / "s")
    (tmp_path / "s").rename(tmp_path / "undisturbed")
    old = grown()
    with monkeypatch.context() as patch:
        patch.setattr(f"hardmine.{moment}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            append("made-up", tmp_path, tmp_path / "s")
    assert PatchStore.open(tmp_path / "s").verify() == []
    assert np.array_equal(old.gather(np.arange(5)), np.stack([pixels_of(s) for s in old.source]))
    report = append("made-up", tmp_path, tmp_path / "s")
    assert report.resumed == (2 if moment != "pipeline.append._end" else 0)
    assert {k: v for k, v in content(tmp_path / "s").items() if k in undisturbed} == undisturbed
    assert not (tmp_path / "s/append.json").exists()
    assert not list((tmp_path / "s/shards").glob("*.json"))


def test_another_append_does_not_take_over_an_unfinished_one(
    tmp_path: Path, grown: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown()
    with monkeypatch.context() as patch:
        patch.setattr("hardmine.pipeline.append.commit_append", interrupt)
        with pytest.raises(KeyboardInterrupt):
            append("made-up", tmp_path, tmp_path / "s")
    with pytest.raises(StoreError, match=r"unfinished append that differs in: options\. .*append\.json"):
        append("made-up", tmp_path, tmp_path / "s", options={"sigma": 2.0})
    (tmp_path / "s/append.json").unlink()
    assert append("made-up", tmp_path, tmp_path / "s", options={"sigma": 2.0}).resumed == 0
    assert len(PatchStore.open(tmp_path / "s")) == 8


def test_a_second_append_clears_the_columns_of_two_stores_ago(tmp_path: Path, grown: Callable) -> None:
    grown(bad_now={5: "dull"})
    append("made-up", tmp_path, tmp_path / "s")
    assert (tmp_path / "s/columns/label.npy").exists()
    grown_source = PatchStore.open(tmp_path / "s").source
    assert b"item 5" not in grown_source.tolist()
    grown_again = {"candidates": lambda self: Candidates(MORE, names(8), (4, 5), {"image": np.arange(8)})}
    from hardmine.pipeline.readers import base

    reader = type("Again", (base.readers.get("made-up"),), {**grown_again, "bad": {}})
    base.readers._known["made-up"] = reader
    append("made-up", tmp_path, tmp_path / "s")
    assert not (tmp_path / "s/columns/label.npy").exists()
    store = PatchStore.open(tmp_path / "s")
    assert len(store) == 8
    assert len(store.manifest.appends) == 2
    assert store.verify() == []


def content(store: Path) -> dict[str, bytes]:
    """What the manifest names, and the manifest."""
    files = [entry.file for entry in PatchStore.open(store).manifest.files()]
    return {name: (store / name).read_bytes() for name in [*files, "manifest.json"]}


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_image_files_join_in_tars_of_their_own(tmp_path: Path) -> None:
    def add(*names: str) -> None:
        for name in names:
            path = tmp_path / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            seed = sum(name.encode())
            cv2.imwrite(str(path), np.random.default_rng(seed).integers(0, 256, (8 + seed % 5, 9, 3), np.uint8))

    add("cat/b.png", "cat/d.png", "dog/a.png", "dog/c.png")
    ingest("folder", tmp_path / "src", tmp_path / "s", shard_rows=3, split="by-item:0.5")
    old = PatchStore.open(tmp_path / "s")
    add("cat/a.png", "ape/a.png", "ape/b.png", "dog/b.png", "dog/d.png")
    append("folder", tmp_path / "src", tmp_path / "s")
    new = PatchStore.open(tmp_path / "s")
    assert new.source[:4].tolist() == old.source.tolist()
    assert new.source[4:].tolist() == [b"cat/a.png", b"dog/b.png", b"dog/d.png", b"ape/a.png", b"ape/b.png"]
    for source, pixels in zip(new.source.tolist(), new.gather(np.arange(9))):
        assert np.array_equal(pixels, cv2.imread(str(tmp_path / "src" / source.decode()))[:, :, ::-1])
    streamed = dict(new.webdataset())
    assert all(np.array_equal(streamed[row], pixels) for row, pixels in enumerate(new.gather(np.arange(9))))
    assert {int(c): int((new.column("split")[new.label == c] == 0).sum()) for c in range(3)} == {0: 1, 1: 2, 2: 1}
    assert new.manifest.counts["patches kept"] == 9
    assert new.manifest.counts["bytes of image files"] > old.manifest.counts["bytes of image files"]
    assert new.verify() == []
