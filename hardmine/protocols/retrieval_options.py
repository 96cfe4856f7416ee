"""The options of `retrieval`, and what each of its metrics is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from hardmine.options import Options as ProtocolOptions

DEFINITIONS = {
    "r@k": "any hit: the share of queries with at least one of their class among the K nearest",
    "recall-fraction": "the share of a query's class that is among the K nearest, mean over queries",
    "map@r": "mean over queries of (sum of the precisions at the matches among the R nearest) / R, R matches in all",
    "map": "mean over queries of the mean precision at each match, over the whole ranking",
    "map-trapezoid": "mean over queries of the area under precision over recall, by trapezoids, over the whole ranking",
    "nmi": "2 I(C; Y) / (H(C) + H(Y)) of k-means clusters and classes, mean over the seeds",
    "f1": "of the question whether two items share a cluster as they share a class, mean over the seeds",
}
LONE = {
    "left-out": "queries without a match count in no figure",
    "miss": "queries without a match count as 0",
    "both": "queries without a match count in no figure, and as 0 in those called -all-queries",
}

Metric = Literal["r@k", "recall-fraction", "map@r", "map", "map-trapezoid", "nmi", "f1"]


def _listed(value: Any) -> Any:
    """One value, or a comma-separated string, as a list of its own."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value] if isinstance(value, int) else value


class RetrievalOptions(ProtocolOptions):
    """protocol: a published benchmark, which sets the splits and the rules, and k and metrics where they are not given
    (`retrieval_benchmarks`).

    k: the K of R@K and of the recall fraction. metrics: which to measure; mAP ranks everything, NMI and F1 cluster, so
    they take longer. query_split, gallery_split: rank the one for each of the other; else leave-one-out within the
    split. lone: what a query without a match is: 'left-out' of every ranking metric, a 'miss' that counts 0, or 'both',
    a figure of each kind. left_out_by: a column, such as camera: gallery items of a query's class that have the query's
    value there are left out of its ranking. junk: a raw label, of items that take no part at all. ties: 'row' orders
    equal distances by row, 'optimistic' puts matches first, for parity with figures counted that way.

    clusters: of k-means, the number of classes where None. seeds, iterations: of k-means. pictures: queries on the
    picture that `plot` draws, those that find a match last ('worst') or 'random' ones. picture_seed: of that draw, and
    of the order of equally bad ones.
    """

    protocol: Literal["cub", "cars", "sop", "inshop", "deepfashion2", "market1501"] | None = None
    k: Annotated[tuple[PositiveInt, ...], BeforeValidator(_listed), Field(min_length=1)] = (1, 2, 4, 8)
    metrics: Annotated[tuple[Metric, ...], BeforeValidator(_listed), Field(min_length=1)] = (
        "r@k",
        "recall-fraction",
        "map@r",
    )
    query_split: str | None = None
    gallery_split: str | None = None
    lone: Literal["left-out", "miss", "both"] = "left-out"
    left_out_by: str | None = None
    junk: int | str | None = None
    ties: Literal["row", "optimistic"] = "row"
    clusters: PositiveInt | None = None
    seeds: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_listed), Field(min_length=1)] = (0, 1, 2)
    iterations: PositiveInt = 20
    pictures: PositiveInt = 8
    pictured: Literal["worst", "random"] = "worst"
    picture_seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _both_splits(self) -> RetrievalOptions:
        if (self.query_split is None) != (self.gallery_split is None):
            raise ValueError("query_split and gallery_split go together: give both, or neither for leave-one-out")
        return self
