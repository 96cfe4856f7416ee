"""The published retrieval benchmarks, on folders in their layouts with answers worked out by hand."""

import json

import numpy as np
import pytest
import retrieval_world as world
from command import run

from hardmine.errors import InputError
from hardmine.protocols.base import protocol
from hardmine.protocols.evaluate import evaluate
from hardmine.protocols.retrieval_benchmarks import BENCHMARKS

MARKET_QUERIES = {"0001_c1s1_000001_00.jpg": 0.0, "0003_c2s1_000001_00.jpg": 50.0}
MARKET_GALLERY = {  # specs 13, G7, with its cameras counted from 1; junk in front of all; and the other query's own
    "-1_c4s1_000001_00.jpg": 0.05,
    "0001_c1s1_000002_00.jpg": 0.1,
    "0002_c2s1_000003_00.jpg": 0.2,
    "0001_c2s1_000004_00.jpg": 0.3,
    "0000_c3s1_000005_00.jpg": 0.4,
    "0001_c4s1_000006_00.jpg": 0.5,
    "0002_c1s1_000007_00.jpg": 0.6,
    "0003_c2s1_000008_00.jpg": 50.0,
}


def measured(store, places, name, **options):
    return protocol("retrieval", {"protocol": name, **options}).evaluate(store, world.on_a_line(store, places), None)


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    src = tmp_path_factory.mktemp("market") / "src"
    return world.market1501(src, list(MARKET_QUERIES), list(MARKET_GALLERY))


def test_g7_market1501(market):
    """Specs 13: the query's own camera's image first, left out; a match second and fourth of what is left. The second
    query has no other image than its own camera's: no torchreid figure counts it, all official ones do."""
    found = measured(market, MARKET_QUERIES | MARKET_GALLERY, "market1501")
    assert list(found.metrics) == ["rank-1", "rank-5", "rank-10", "rank-20", "map", "map-trapezoid"]
    assert [found.metrics[f"rank-{k}"] for k in (1, 5, 10, 20)] == [0, 1, 1, 1]
    assert found.metrics["map"] == pytest.approx(0.5)
    assert found.metrics["map-trapezoid"] == pytest.approx(1 / 3)
    assert {name: found.details[f"{name}-all-queries"] for name in found.metrics} == pytest.approx(
        {name: value / 2 for name, value in found.metrics.items()}
    )
    facts = found.facts
    assert (facts["queries"], facts["lone"], facts["gallery"]) == (1, 1, 7)
    assert facts["junk_dropped"] == 1
    assert facts["left_out_by_camera"] == 2
    assert facts["distractors"] == 3  # person 0, and person 2, whom no query shows
    assert facts["expected"]["gallery"] == {"images": 15913, "classes": 751}
    assert facts["found"] == {"query": {"images": 2, "classes": 2}, "gallery": {"images": 7, "classes": 4}}
    assert facts["partial"]
    assert facts["lone_queries"].endswith("-all-queries")


def test_market1501_counts_ranks_after_leaving_out(market):
    """Cut at 1 and 2 instead, which is said: the first match is second, not third."""
    found = measured(market, MARKET_QUERIES | MARKET_GALLERY, "market1501", k=[1, 2], metrics="r@k")
    assert found.metrics == {"rank-1": 0, "rank-2": 1}
    assert found.facts["changed"] == {
        "k": "1, 2 instead of 1, 5, 10, 20",
        "metrics": "r@k instead of r@k, map, map-trapezoid",
    }


def test_market1501_pictures_leave_out_the_same(market, tmp_path):
    method = protocol("retrieval", {"protocol": "market1501"})
    found = method.evaluate(market, world.on_a_line(market, MARKET_QUERIES | MARKET_GALLERY), None)
    rows, near = found.curves["pictured"]
    assert market.source[rows].tolist() == [b"query/0001_c1s1_000001_00.jpg"]
    names = [market.source[row].decode().split("/")[1][:7] for row in near[0]]
    assert names == ["0002_c2", "0001_c2", "0000_c3", "0001_c4", "0002_c1"]
    method.plot({"x": found}, tmp_path / "found.png")


def test_junk_of_another_reader_takes_no_part(market):
    """A store whose gallery holds junk, as a table may: it is left out by its raw label."""
    options = {"query_split": "query", "gallery_split": "gallery", "k": [1], "metrics": "r@k"}
    describe = world.on_a_line(market, MARKET_QUERIES | MARKET_GALLERY)
    assert protocol("retrieval", options).evaluate(market, describe, None).metrics == {"r@1": 1}  # its own camera
    found = protocol("retrieval", {**options, "junk": 1}).evaluate(market, describe, None)
    assert (found.facts["queries"], found.facts["gallery"], found.facts["junk_dropped"]) == (1, 4, 4)
    with pytest.raises(InputError, match=r"raw labels of .* are numbers"):
        protocol("retrieval", {**options, "junk": "-1"}).evaluate(market, describe, None)


def test_deepfashion2(tmp_path):
    """Three garments of users with a style. The first's nearest is of its pair, but of style 0; the third has no match
    and is a miss; the fourth, of style 0, is no query."""
    images = [
        ("user", 7, [1]),
        ("user", 7, [2, 0]),
        ("user", 8, [1]),
        ("shop", 7, [1, 0, 2]),
        ("shop", 8, [2]),
        ("shop", 9, [0]),
    ]
    store = world.deepfashion2(tmp_path / "src", images)
    places = {"000001.jpg#item1": 0, "000002.jpg#item1": 5, "000002.jpg#item2": 5, "000003.jpg#item1": 50}
    places |= {"000004.jpg#item1": 2, "000004.jpg#item2": 1, "000004.jpg#item3": 5.5}
    places |= {"000005.jpg#item1": 50, "000006.jpg#item1": 51}
    found = measured(store, places, "deepfashion2")
    assert found.metrics == pytest.approx(
        {"top-1": 1 / 3, "top-5": 2 / 3, "top-10": 2 / 3, "top-15": 2 / 3, "top-20": 2 / 3, "map": (1 / 2 + 1) / 3}
    )
    facts = found.facts
    assert (facts["queries"], facts["lone"], facts["gallery"], facts["distractors"]) == (2, 1, 5, 3)
    assert facts["expected"] == {"query": {"garments": 12550}, "gallery": {"garments": 37183}}
    assert facts["found"] == {"query": {"garments": 3}, "gallery": {"garments": 5}}
    assert facts["lone_queries"] == "queries without a match count as 0"


def test_inshop(tmp_path):
    """One ranking over all products: the first query's match is second, the second's third, the third's thirteenth."""
    queries = {"q1.jpg": (1, 0), "q2.jpg": (2, 10), "q3.jpg": (3, 100)}
    gallery = {"g1.jpg": (1, 3), "g2.jpg": (2, 1), "g3.jpg": (2, 20), "g4.jpg": (1, 11), "g5.jpg": (3, 200)}
    gallery |= {f"other{i}.jpg": (4, 100 + i) for i in range(12)}
    numbers = [{name: item for name, (item, _) in side.items()} for side in (queries, gallery)]
    store = world.inshop(tmp_path / "src", *numbers)
    found = measured(store, {name: at for name, (_, at) in (queries | gallery).items()}, "inshop")
    assert list(found.metrics) == [f"r@{k}" for k in (1, 10, 20, 30, 40, 50)]
    assert list(found.metrics.values()) == pytest.approx([0, 2 / 3, 1, 1, 1, 1])
    assert (found.facts["query_split"], found.facts["gallery_split"]) == ("query", "gallery")
    assert found.facts["expected"]["query"] == {"images": 14218, "classes": 3985}
    assert found.facts["distractors"] == 12


@pytest.mark.parametrize(
    ("make", "offset", "ks"),
    [
        (world.cub, 100, (1, 2, 4, 8, 16, 32)),
        (world.cars, 98, (1, 2, 4, 8, 16, 32)),
        (world.sop, 11318, (1, 10, 100, 1000)),
    ],
)
def test_leave_one_out_on_classes_that_were_not_trained_on(tmp_path, make, offset, ks):
    """Test images 1 to 4 of two classes at 0, 1, 3, 4; a training image of neither lies between them."""
    name = make.__name__
    classes = [offset + 1, offset + 2, offset + 1, offset + 2] + ([1] if name != "sop" else [])
    store = make(tmp_path / "src", classes)
    found = measured(store, {"1.jpg": 0, "2.jpg": 1, "3.jpg": 3.1, "4.jpg": 4, "5.jpg": 0.1}, name)
    assert [key for key in found.metrics if key.startswith("r@")] == [f"r@{k}" for k in ks]
    # nearest of 1: 2, 3, 4; of 2: 1, 3, 4; of 3: 4, 2, 1; of 4: 3, 2, 1; the match is second, third, third, second
    assert found.metrics["r@1"] == 0
    assert found.metrics[f"r@{ks[-1]}"] == 1
    if ks[1] == 2:
        assert found.metrics["r@2"] == 0.5
        assert {"nmi", "f1"} <= set(found.metrics)
    assert found.metrics["map@r"] == 0
    assert found.facts["split"] == "test"
    assert found.facts["found"] == {"test": {"images": 4, "classes": 2}}
    assert found.facts["partial"]


def test_what_contradicts_a_benchmark_is_refused(market, tmp_path):
    for option, message in (
        ({"lone": "miss"}, "lone = 'miss' is not the protocol 'market1501', which has 'both'"),
        ({"left_out_by": "sequence"}, "which has 'camera'"),
        ({"query_split": "query", "gallery_split": "train"}, "gallery_split = 'train' is not"),
    ):
        with pytest.raises(InputError, match=message):
            protocol("retrieval", {"protocol": "market1501", **option})
    protocol("retrieval", {"protocol": "market1501", "query_split": "query", "gallery_split": "gallery"})
    with pytest.raises(InputError, match=r"has no split 'test' .* ingest the dataset with the reader 'cub'"):
        protocol("retrieval", {"protocol": "cub"}).splits(market, None)
    with pytest.raises(InputError, match="leave out the split 'query'"):
        protocol("retrieval", {"protocol": "market1501"}).splits(market, "query")
    birds = world.cub(tmp_path / "src", [101, 101, 1])
    with pytest.raises(InputError, match="is about 'test', not the split 'train'"):
        protocol("retrieval", {"protocol": "cub"}).splits(birds, "train")
    assert protocol("retrieval", {"protocol": "cub"}).splits(birds, "test") == ["test"]
    with pytest.raises(InputError, match="has no column 'lens'"):
        protocol("retrieval", {"left_out_by": "lens"}).evaluate(birds, world.on_a_line(birds, {}), "test")


def test_a_whole_dataset_is_not_called_partial():
    from hardmine.protocols.retrieval_benchmarks import shortfall

    for benchmark in BENCHMARKS.values():
        assert not shortfall(benchmark.sizes, benchmark)
        for split, size in benchmark.sizes.items():
            for what, number in size.items():
                less = {**benchmark.sizes, split: {**size, what: number - 1}}
                assert shortfall(less, benchmark)


def test_the_command_line_names_it(market):
    words = ["evaluate", "retrieval", market.path, "--protocol", "market1501", "--compare", "pixels"]
    found = json.loads(run(*words, "--json"))
    assert found["results"]["pixels"]["benchmark"] == "market1501"
    assert any(message.startswith("partial") for message in found["messages"])
    assert "rank-1" in run(*words)
    report = evaluate("retrieval", market.path, "nowhere", options={"protocol": "market1501"}, compare=["pixels"])
    assert report.json()["results"]["pixels"]["map"] == found["results"]["pixels"]["map"]
    assert np.isfinite(list(report.results["pixels"].metrics.values())).all()
