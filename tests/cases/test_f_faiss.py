"""bugcases.md F65-F78 and G91, as far as index and search go."""

import builtins
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError, NumericalError, StoreError, UnknownNameError
from hardmine.store.approximate import approximate_both
from hardmine.store.index import build_index, open_index
from hardmine.store.search import nearest

faiss = pytest.importorskip("faiss")


def points(count=900, dim=8, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def rows_of(count):
    return np.arange(count) * 3 + 100


@pytest.mark.parametrize("factory", ["IVF16,Flat", "HNSW16", "IVF8,PQ2x4", "SQ8"])
def test_f65_saved_and_read_back_finds_the_same(factory):
    x, rows = points(), rows_of(900)
    record, content = build_index(x, rows, factory, neighbours=5)
    assert content.dtype == np.uint8
    assert record.factory == record.asked == factory
    first = open_index(asdict(record), content, x, rows, "euclidean").search(x[:50], 5, query_rows=rows[:50])
    second = open_index(asdict(record), content.copy(), x, rows, "euclidean").search(x[:50], 5, query_rows=rows[:50])
    np.testing.assert_array_equal(first.rows, second.rows)
    assert not (first.rows == rows[:50, None]).any()
    exact = nearest(x, rows, 5)
    found = open_index(asdict(record), content, x, rows, "euclidean").search(x, 5, query_rows=rows).rows
    recall = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(exact.rows.tolist(), found.tolist())])
    assert record.recall == pytest.approx(recall)  # 900 items: the sample is all of them
    assert record.sampled == 900


def test_f65_flat_needs_no_bytes_and_is_exact():
    x, rows = points(200), rows_of(200)
    record, content = build_index(x, rows)
    assert content is None
    assert (record.factory, record.recall, record.ntotal, record.training_rows) == ("Flat", 1.0, 200, 0)
    found = open_index(asdict(record), None, x, rows, "euclidean").search(x, 4, query_rows=rows)
    np.testing.assert_array_equal(found.rows, nearest(x, rows, 4).rows)


@pytest.mark.parametrize(("factory", "count"), [("IVF500,Flat", 175), ("PQ4", 111), ("IVF4,PQ4", 200)])
def test_f67_too_few_training_points_give_the_exact_index_and_say_so(factory, count):
    record, content = build_index(points(count), rows_of(count), factory)
    assert content is None
    assert (record.asked, record.factory) == (factory, "Flat")
    assert f"{count} items" in record.messages[0]
    assert "using Flat" in record.messages[0]


def test_f68_what_faiss_does_not_find_is_masked_and_counted():
    x, rows = points(200), rows_of(200)
    record, content = build_index(x, rows, "IVF5,Flat", neighbours=5)
    found = open_index(asdict(record), content, x, rows, "euclidean").search(x[:20], 150)  # one list of five is probed
    assert found.short == 20
    for line, distance in zip(found.rows, found.distance):
        assert set(line[line >= 0]) <= set(rows)
        assert (line[np.argmax(line < 0) :] == -1).all()
        assert np.isnan(distance[line < 0]).all()
        np.testing.assert_array_equal(np.sort(distance[line >= 0]), distance[line >= 0])


@pytest.mark.parametrize("factory", ["IVFF16,Flat", "flat", "PQ3"])
def test_f69_an_unknown_factory_is_refused(factory):
    with pytest.raises(InputError, match=factory):
        build_index(points(), rows_of(900), factory)


@pytest.mark.parametrize("factory", ["IVF0,Flat", "HNSW0", "HNSW1", "IVF16_HNSW1,Flat", "NSG1", "PQ4x0", "IVF4,PQ4x0"])
def test_f69_numbers_that_faiss_dies_of_are_refused(factory):
    labels = np.arange(900) // 10
    for attempt in (build_index, lambda x, rows, asked: approximate_both(x, rows, labels, 5, asked)):
        with pytest.raises(InputError, match=f"{factory}.* or more"):
            attempt(points(), rows_of(900), factory)


def test_f71_any_dtype_and_layout():
    x, rows = points(300), rows_of(300)
    for values in (x.astype(np.float64), np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2]):
        record, content = build_index(values, rows, "IVF4,Flat")
        found = open_index(asdict(record), content, x, rows, "euclidean").search(values[:9].astype(np.float16), 3)
        assert (found.rows[:, 0] == rows[:9]).all()


def test_f72_rows_that_are_not_finite_never_reach_the_index():
    x = points(300)
    x[7, 2] = np.nan
    with pytest.raises(NumericalError, match="rows 121"):
        build_index(x, rows_of(300), "IVF4,Flat")


def test_f73_self_is_left_out_by_row_whatever_the_norms():
    x = points(60) * np.linspace(0.1, 10, 60, dtype=np.float32)[:, None]
    x[30] = x[31]  # a duplicate may stand before the item itself
    rows = rows_of(60)
    found = nearest(x, rows, 5).rows
    assert not (found == rows[:, None]).any()
    assert found[30, 0] == rows[31]
    assert found[31, 0] == rows[30]


def test_f75_torch_and_faiss_live_in_one_process():
    program = (
        "import numpy as np\nfrom hardmine.store.index import build_index\n"
        "x = np.random.default_rng(0).standard_normal((2000, 16)).astype('float32')\n"
        "print(build_index(x, np.arange(2000), 'IVF16,Flat')[0].recall > 0.3)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(root)}
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("factory", ["IVF16,Flat", "HNSW16", "IVF8,PQ2x4"])
def test_f77_the_same_seed_gives_the_same_bytes(factory):
    x, rows = points(), rows_of(900)
    first, second = (build_index(x, rows, factory, seed=3)[1] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_f78_another_metric_is_refused_everywhere():
    x, rows = points(300), rows_of(300)
    record, content = build_index(x, rows, "IVF4,Flat")
    opened = open_index(asdict(record), content, x, rows, "euclidean")
    with pytest.raises(InputError, match="built for the euclidean"):
        opened.search(x[:2], 3, metric="cosine")
    with pytest.raises(StoreError, match="cosine"):
        open_index(asdict(record), content, x, rows, "cosine")
    with pytest.raises(UnknownNameError):
        build_index(x, rows, metric="cosine")


def test_an_index_of_other_descriptors_is_refused():
    x, rows = points(300), rows_of(300)
    record, content = build_index(x, rows, "IVF4,Flat")
    with pytest.raises(StoreError, match="300 items of 8 dimensions"):
        open_index(asdict(record), content, x[:200], rows[:200], "euclidean")
    with pytest.raises(StoreError, match="missing"):
        open_index(asdict(record), None, x, rows, "euclidean")


def test_without_faiss_flat_works_and_others_say_what_to_install(monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "faiss":
            raise ImportError("No module named 'faiss'")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    x, rows = points(300), rows_of(300)
    assert build_index(x, rows)[0].factory == "Flat"
    with pytest.raises(InputError, match=r"pip install 'hardmine\[cpu\]'"):
        build_index(x, rows, "IVF4,Flat")


def test_a_round_keeps_and_replaces_its_index(tmp_path):
    from mining_world import OPTIONS, Tiny, make_store

    from hardmine.mining.mine import mine

    store = make_store(tmp_path / "store", (20, 10, 30))
    options = {**OPTIONS, "derive": ("index", "knn")}
    first = mine(store, tmp_path / "m", Tiny(), index="HNSW8", **options)
    assert first.round.index().factory == "HNSW8"
    network = Tiny()
    again = mine(store, tmp_path / "m", network, **options)  # Flat is met by every round
    assert again.round.attrs == first.round.attrs
    assert again.round.index("Flat").search(again.round.descriptors()[:1], 1).distance[0, 0] == 0
    other = mine(store, tmp_path / "m", network, index="IVF100,Flat", **options)
    assert any("using Flat" in line for line in other.messages)
    assert other.round.attrs["derived"]["index"]["asked"] == "IVF100,Flat"
    assert not (other.round.folder / "index").exists()
    with pytest.raises(StoreError, match="mine with that index"):
        other.round.index("HNSW8")
    assert network.calls == 0
    assert mine(store, tmp_path / "m", network, index="IVF100,Flat", **options).reused
