"""The benchmark's lists: drawn by its rule, read from its files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError
from hardmine.pipeline.readers.hpatches_names import SEQUENCES, TEST
from hardmine.protocols.hpatches.lists import kept_verification_lists, retrieval_lists, verification_lists
from hardmine.protocols.hpatches.splits import official_split, task_file
from hardmine.protocols.hpatches.task_files import Pairs, read_items, read_pairs

HEADER = "s1,t1,idx1,s2,t2,idx2\n"


def columns(pairs: Pairs) -> list[list[int]]:
    return [getattr(pairs, name).tolist() for name in ("s1", "t1", "i1", "s2", "t2", "i2")]


def test_the_rule_call_by_call():
    """The same draws with the calls of the benchmark's script."""
    lengths = (7, 2, 1300, 40)
    random = np.random.RandomState(9)
    s = random.choice(np.array(["a", "b", "c", "d"]), 300)
    size = dict(zip("abcd", lengths))
    patches = [random.choice(np.arange(size[k]), 2, replace=False) for k in s]
    images = [random.choice(np.arange(5), 2, replace=False) for _ in s]
    other = random.choice(np.array(["a", "b", "c", "d"]), 300)
    patch = [random.randint(size[k]) for k in other]
    positives, intra, inter = verification_lists(lengths, 300, seed=9)
    for k in range(300):
        a, z = "abcd".index(s[k]), "abcd".index(other[k])
        (i, j), (t, u) = patches[k], images[k]
        assert [c[k] for c in columns(positives)] == [a, t, i, a, u, i]
        assert [c[k] for c in columns(intra)] == [a, t, i, a, u, j]
        assert [c[k] for c in columns(inter)] == [a, t, i, z, u, patch[k]]


def test_the_retrieval_rule_call_by_call():
    """The same draws with the calls of the benchmark's script, one patch at a time."""
    lengths, wanted = (7, 300, 1300, 40), (50, 90)
    contrast = np.random.default_rng(2).uniform(0, 40, sum(lengths))
    start = dict(zip("abcd", np.cumsum([0, *lengths])))
    size = dict(zip("abcd", lengths))
    random, lists = np.random.RandomState(9), []
    for count in (4 * wanted[0], 10 * wanted[1]):
        s = random.choice(np.array(list("abcd")), count)
        drawn = [(k, random.randint(size[k])) for k in s]
        lists.append(list(dict.fromkeys((k, i) for k, i in drawn if contrast[start[k] + i] > 10)))
    queries = lists[0][: wanted[0]]
    distractors = [item for item in lists[1] if item not in queries][: wanted[1]]
    found = retrieval_lists(lengths, contrast, *wanted, seed=9)
    for items, expected in zip(found, (queries, distractors)):
        assert [("abcd"[s], i) for s, i in zip(items.s.tolist(), items.i.tolist())] == expected
    assert (len(queries), len(distractors)) == wanted


def test_the_documented_first_rows():
    """docs/tasks.md lists v_birdwoman,4,251 .. i_zion,3,1766 for split a, and its query list begins v_birdwoman,3 ..
    i_zion,1263. Sequences do not depend on lengths; with the lengths below the patches of both follow."""
    known = {"v_birdwoman": 2000, "v_strand": 1816, "i_salon": 1102, "i_zion": 2000}
    names = official_split("a").test
    positives, _, _ = verification_lists(tuple(known.get(name, 1500) for name in names), 1_000, seed=42)
    drawn = np.random.RandomState(42).choice(np.array(names), 1_000_000)
    assert drawn[:4].tolist() == list(known)
    long = np.random.RandomState(42)
    long.choice(len(names), 1_000_000)
    assert [long.permutation(n)[0] for n in known.values()] == [251, 1625, 1100, 1766]
    assert [names[s] for s in positives.s1[:4]] == list(known)  # so is the first draw of a shorter list
    lengths = tuple(known.get(name, 1500) for name in names)
    queries, _ = retrieval_lists(lengths, np.full(sum(lengths), 20.0))
    assert [names[s] for s in queries.s[:4]] == list(known)
    assert queries.i[:4].tolist() == [3, 2, 324, 1263]


def test_kept_lists_are_the_drawn_ones(tmp_path):
    drawn = verification_lists((9, 5), 40, 1)
    first = kept_verification_lists(tmp_path / "lists", (9, 5), 40, 1)
    (file,) = (tmp_path / "lists").iterdir()
    again = kept_verification_lists(tmp_path / "lists", (9, 5), 40, 1)
    for a, b, c in zip(drawn, first, again):
        assert columns(a) == columns(b) == columns(c)
    kept_verification_lists(tmp_path / "lists", (9, 6), 40, 1)
    assert len(list((tmp_path / "lists").iterdir())) == 2
    assert file.is_file()
    with pytest.raises(InputError, match="one patch"):
        verification_lists((9, 1), 40, 1)


def test_retrieval_lists_are_flat_free_and_disjoint():
    rng = np.random.default_rng(0)
    lengths = (30, 50, 20)
    contrast = rng.uniform(0, 40, 100)
    query, distractor = retrieval_lists(lengths, contrast, queries=20, distractors=40, seed=3)
    start = np.array([0, 30, 80])
    places = [start[items.s] + items.i for items in (query, distractor)]
    assert len(query) == 20
    assert len(set(places[0]) | set(places[1])) == len(query) + len(distractor)
    assert (contrast[np.concatenate(places)] > 10).all()
    few, rest = retrieval_lists(lengths, np.where(np.arange(100) % 4, 0.0, 20.0), seed=3)
    assert (len(few), len(rest)) == (8, 17)
    with pytest.raises(InputError, match="0 of 100 reference patches have a contrast above 10"):
        retrieval_lists(lengths, np.zeros(100))


def test_the_splits_are_the_readers():
    for name in "abc":
        split = official_split(name)
        assert set(split.test) == TEST[name]
        assert set(split.train) == set(SEQUENCES) - TEST[name]
    assert len(official_split("illum").test) == 57
    assert len(official_split("view").test) == 59
    assert set(official_split("full").test) == set(SEQUENCES)
    assert official_split("full").train == ()


def test_a_splits_file_is_read_where_it_is_there(tmp_path):
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits/splits.json").write_text(json.dumps({"a": {"test": ["v_x"], "train": ["v_y"], "name": "a"}}))
    assert official_split("a", tmp_path).test == ("v_x",)
    with pytest.raises(InputError, match="no split 'b'"):
        official_split("b", tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        task_file(tmp_path / "nowhere", "splits.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s1,t1\n", "the first line is 's1,t1'"),
        (HEADER, "holds no row"),
        (HEADER + "v_a,0,1,v_a,2\n", "cannot be read below its header"),
        (HEADER + "v_a,0,one,v_a,2,1\n", "cannot be read below its header"),
        (HEADER + "v_a,0,1,v_a,2,1\nv_a,0,1,v_b,2,4\n", r"line 3: patch 4 of v_b, which has 4 patches"),
        (HEADER + "v_a,0,-1,v_a,2,1\n", r"line 2: patch -1 of v_a"),
        (HEADER + "v_a,0,1,v_a,6,1\n", r"line 2: image 6"),
    ],
)
def test_a_list_of_another_form_is_refused(tmp_path, text, message):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_pairs(tmp_path / "list.csv", {"v_a": 3, "v_b": 4})


@pytest.mark.shared
@pytest.mark.skipif("HARDMINE_SHARED" not in os.environ, reason="HARDMINE_SHARED names no folder with real data")
def test_the_official_files():
    """Their order of sequences, and that the retrieval lists come from our rule: the same sequences in the same order,
    drawn 40,000 times, of which those that are too flat or were there before are missing."""
    tasks = Path(os.environ["HARDMINE_SHARED"]) / "data" / "hpatches_tasks"
    for name in ("a", "b", "c", "illum", "view", "full"):
        built_in, read = official_split(name), official_split(name, tasks)
        assert built_in.test == read.test
        assert set(built_in.train) == set(read.train)
        lengths = dict.fromkeys(read.test, 1 << 20)
        queries, lost = read_items(tasks / f"retr_queries_split-{name}.csv", lengths)
        distractors, _ = read_items(tasks / f"retr_distractors_split-{name}.csv", lengths)
        assert (len(queries), len(distractors), lost) == (10_000, 20_000, {})
        draws = iter(np.random.RandomState(42).choice(len(read.test), 40_000).tolist())
        assert all(any(s == draw for draw in draws) for s in queries.s.tolist())
