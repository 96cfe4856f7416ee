"""Public reports about the HPatches benchmark, by their number in our log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hpatches_world import described, drawn, stored

from hardmine.metrics.precision_recall import average_precision
from hardmine.pipeline.readers.hpatches_names import SEQUENCES
from hardmine.protocols.base import protocol
from hardmine.protocols.hpatches.lists import verification_lists
from hardmine.protocols.hpatches.splits import official_split
from hardmine.store.patches import PatchStore

PAIR_HEADER = "s1,t1,idx1,s2,t2,idx2\n"


def pair_files(folder: Path, split: str, rows: dict[str, list[str]]) -> None:
    folder.mkdir()
    for name, lines in rows.items():
        (folder / f"verif_{name}_split-{split}.csv").write_text(PAIR_HEADER + "".join(f"{line}\n" for line in lines))


def test_b24_the_area_needs_neither_trapz_nor_as_matrix() -> None:
    assert average_precision([0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0]) == pytest.approx(0.763888889, abs=1e-9)


def test_b25_repeated_rows_are_counted_and_can_be_dropped(tmp_path: Path) -> None:
    sizes = {"i_one": 6, "v_two": 5}
    store = stored(tmp_path, sizes)
    positives = [f"i_one,{t},{i},i_one,{t + 1},{i}" for t in range(2) for i in range(5)]
    intra = [f"i_one,{t},{i},i_one,2,{5 - i}" for t in range(3) for i in range(4)]
    inter = [f"i_one,{t},{i},v_two,2,{i}" for t in range(3) for i in range(4)]
    pair_files(tmp_path / "tasks", "all", {"pos": positives * 3, "neg_intra": intra, "neg_inter": inter})
    describe = described(store, drawn(sizes))
    kept, dropped = (
        protocol("hpatches-verification", {"tasks": tmp_path / "tasks", "duplicates": how}).evaluate(
            store, describe, None
        )
        for how in ("keep", "drop")
    )
    assert kept.facts["repeated_rows"] == "20 of the positives, 0 inter, 0 intra"
    assert (kept.facts["positives"], dropped.facts["positives"]) == (30, 10)
    assert dropped.facts["repeats"] == "drop"
    assert kept.metrics["auc"] == pytest.approx(dropped.metrics["auc"])  # all are repeated alike
    assert kept.metrics["map"] == pytest.approx(dropped.metrics["map"])  # of which the first two are taken


def test_b25_the_official_rule_draws_repeats() -> None:
    """57 sequences have 57 x 20 ordered pairs of images for each of their patches: a million draws repeat many."""
    positives, _, _ = verification_lists((9,) * 57, 10_000)
    ordered = 57 * 9 * 20
    expected = 10_000 - ordered * (1 - np.exp(-10_000 / ordered))
    assert len(positives) - len(positives.firsts()) == pytest.approx(expected, rel=0.05)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> PatchStore:
    """100 of the 116 sequences, two patches each."""
    return stored(tmp_path_factory.mktemp("hundred"), dict.fromkeys(SEQUENCES[16:], 2))


@pytest.mark.parametrize("task", ["all", "full"])
def test_b26_a_hundred_sequences_are_not_the_whole(hundred: PatchStore, task: str) -> None:
    describe = described(hundred, drawn(dict.fromkeys(SEQUENCES[16:], 2)))
    found = protocol("hpatches-matching", {"task": task}).evaluate(hundred, describe, None)
    assert found.facts["partial"] is True
    assert found.facts["sequences"] == 100
    assert found.facts["missing_sequences"] == 16
    assert set(found.facts["missing"].split(", ")) == set(SEQUENCES[:16])


def test_b26_rows_of_sequences_that_are_missing_are_dropped_and_counted(tmp_path: Path) -> None:
    sizes = {"v_birdwoman": 5, "v_strand": 5}
    store = stored(tmp_path, sizes)
    there = [f"v_birdwoman,{t},{i},v_birdwoman,3,{i}" for t in range(3) for i in range(5)]
    other = [f"v_birdwoman,{t},{i},v_strand,3,{(i + 2) % 5}" for t in range(3) for i in range(5)]
    gone = ["i_salon,0,1100,i_salon,3,1100", "i_zion,3,1766,v_strand,0,4"]
    pair_files(tmp_path / "tasks", "a", {"pos": there + gone[:1], "neg_intra": other, "neg_inter": gone + other})
    found = protocol("hpatches-verification", {"task": "a", "tasks": tmp_path / "tasks"}).evaluate(
        store, described(store, drawn(sizes)), None
    )
    assert found.facts["partial"] is True
    assert found.facts["missing_sequences"] == len(official_split("a").test) - 2
    assert "i_salon" in found.facts["missing"]
    assert found.facts["rows_of_missing_sequences"] == 3
    assert found.facts["positives"] == 15


def test_b123_the_retrieval_protocol_stands_beside_its_number(tmp_path: Path) -> None:
    sizes = {"i_one": 20, "v_two": 30}
    store = stored(tmp_path, sizes)
    found = protocol("hpatches-retrieval", {"queries": 4, "distractors": 25}).evaluate(
        store, described(store, drawn(sizes)), None
    )
    facts = found.facts
    assert (facts["task_split"], facts["queries"], facts["distractors"]) == ("all", 4, 25)
    assert facts["pools"] == "100"
    assert facts["generated"] is True
    low, high = (int(word) for word in facts["distractors_per_query"].split(",")[0].split(" to "))
    assert 0 < low <= high < 25
