"""Published retrieval benchmarks as options of `retrieval`: which splits, which K, which rules, and how large.

cub, cars, sop   Song et al., "Deep metric learning via lifted structured feature embedding", CVPR 2016: leave-one-out
                 on classes that were not trained on (specs 9.1).
inshop           Liu et al., "DeepFashion", CVPR 2016: queries against a gallery of the same products (specs 9.6).
deepfashion2     Ge et al., "DeepFashion2", CVPR 2019: a customer's garment in shops' photographs, with the annotated
                 boxes; same are one pair_id and one style above 0, which is what the reader's classes are (specs 11).
market1501       Zheng et al., "Scalable person re-identification", ICCV 2015, by its own evaluation and torchreid's
                 (specs 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hardmine.errors import InputError
from hardmine.pipeline.readers import cars, cub, deepfashion2, inshop, market1501, sop
from hardmine.pipeline.readers.official import Official
from hardmine.protocols.retrieval_options import RetrievalOptions

Sizes = Mapping[str, Mapping[str, int]]  # split to "images" (or "garments") and "classes", to how many


@dataclass(frozen=True)
class Benchmark:
    """name: of the benchmark and of its reader. rules: the options that make it what it is; others are refused. usual:
    options that its literature has; others are taken, and said. sizes: as published. split: the one that is measured
    leave-one-out, None for queries and gallery. hit: what R@K is called in it, without the K."""

    name: str
    usual: Mapping[str, Any]
    sizes: Sizes
    rules: Mapping[str, Any] = field(default_factory=dict)
    split: str | None = None
    hit: str = "r@"


def _sizes(official: Official, *splits: str) -> Sizes:
    return {name: {"images": official.splits[name].images, "classes": official.splits[name].classes} for name in splits}


_RULES = ("query_split", "gallery_split", "lone", "left_out_by", "junk")
_PARTS = {"query": "queries", "gallery": "gallery"}  # DeepFashion2's words for the garments of each
_QUERY_GALLERY = {"query_split": "query", "gallery_split": "gallery"}
_CLUSTERED = ("r@k", "map@r", "nmi", "f1")

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "cub", {"k": (1, 2, 4, 8, 16, 32), "metrics": _CLUSTERED}, _sizes(cub.OFFICIAL, "test"), split="test"
        ),
        Benchmark(
            "cars", {"k": (1, 2, 4, 8, 16, 32), "metrics": _CLUSTERED}, _sizes(cars.OFFICIAL, "test"), split="test"
        ),
        # without nmi and f1, which take k-means into 11,316 groups: ask for them
        Benchmark(
            "sop", {"k": (1, 10, 100, 1000), "metrics": ("r@k", "map@r")}, _sizes(sop.OFFICIAL, "test"), split="test"
        ),
        Benchmark(
            "inshop",
            {"k": (1, 10, 20, 30, 40, 50), "metrics": ("r@k",)},
            _sizes(inshop.OFFICIAL, "query", "gallery"),
            rules=_QUERY_GALLERY,
        ),
        Benchmark(
            "deepfashion2",
            {"k": (1, 5, 10, 15, 20), "metrics": ("r@k", "map")},
            {name: {"garments": deepfashion2.PUBLISHED[part]} for name, part in _PARTS.items()},
            rules=_QUERY_GALLERY | {"lone": "miss"},
            hit="top-",
        ),
        Benchmark(
            "market1501",
            {"k": (1, 5, 10, 20), "metrics": ("r@k", "map", "map-trapezoid")},
            _sizes(market1501.OFFICIAL, "query", "gallery"),
            rules=_QUERY_GALLERY | {"lone": "both", "left_out_by": "camera", "junk": -1},
            hit="rank-",
        ),
    )
}


def settled(options: RetrievalOptions) -> tuple[RetrievalOptions, Benchmark | None, dict[str, str]]:
    """The options with those of their benchmark, the benchmark, and which usual ones were given otherwise, in words.
    Raises InputError where a given option contradicts one of its rules."""
    if options.protocol is None:
        return options, None, {}
    benchmark = BENCHMARKS[options.protocol]
    given = options.model_fields_set
    free = RetrievalOptions.model_fields
    rules = {name: free[name].default for name in _RULES} | dict(benchmark.rules)
    for name, value in rules.items():
        if name in given and getattr(options, name) != value:
            raise InputError(
                f"{name} = {getattr(options, name)!r} is not the protocol {benchmark.name!r}, which has {value!r}: "
                "leave it out, or leave the protocol out and give the options you want"
            )
    usual = {"ties": free["ties"].default} | dict(benchmark.usual)
    changed = {
        name: f"{_words(getattr(options, name))} instead of {_words(value)}"
        for name, value in usual.items()
        if name in given and getattr(options, name) != value
    }
    update = rules | {name: value for name, value in usual.items() if name not in given}
    return options.model_copy(update=update), benchmark, changed


def shortfall(found: Sizes, benchmark: Benchmark) -> bool:
    """Whether there is less of a split than was published."""
    return any(found[split][what] < number for split, size in benchmark.sizes.items() for what, number in size.items())


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
