"""Image retrieval and clustering: R@K, MAP@R, mAP, NMI and F1 of a split, or of queries against a gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from hardmine.errors import InputError
from hardmine.metrics.clustering import k_means, nmi, pairwise_f1
from hardmine.options import Options as ProtocolOptions
from hardmine.protocols.base import Describe, Evaluated, Protocol, protocols
from hardmine.protocols.described import Described
from hardmine.protocols.retrieval_figures import RANKED, Items, Retrieved, retrieve
from hardmine.protocols.retrieval_pictures import Panel, draw_panels
from hardmine.store.distances import as_descriptors
from hardmine.store.patches import PatchStore
from hardmine.store.search import nearest

SHOWN = 5  # neighbours beside a pictured query
DEFINITIONS = {
    "r@k": "any hit: the share of queries with at least one of their class among the K nearest",
    "recall-fraction": "the share of a query's class that is among the K nearest, mean over queries",
    "map@r": "mean over queries of (sum of the precisions at the matches among the R nearest) / R, R matches in all",
    "map": "mean over queries of the mean precision at each match, over the whole ranking",
    "nmi": "2 I(C; Y) / (H(C) + H(Y)) of k-means clusters and classes, mean over the seeds",
    "f1": "of the question whether two items share a cluster as they share a class, mean over the seeds",
}

Metric = Literal["r@k", "recall-fraction", "map@r", "map", "nmi", "f1"]


def _listed(value: Any) -> Any:
    """One value, or a comma-separated string, as a list of its own."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value] if isinstance(value, int) else value


class RetrievalOptions(ProtocolOptions):
    """k: the K of R@K and of the recall fraction.

    metrics: which to measure; mAP ranks everything, NMI and F1 cluster, so they take longer. query_split,
    gallery_split: rank the one for each of the other; else leave-one-out within the split. ties: 'row' orders equal
    distances by row, 'optimistic' puts matches first, for parity with figures counted that way. clusters: of k-means,
    the number of classes where None. seeds, iterations: of k-means. pictures: queries on the picture that `plot` draws,
    those that find a match last ('worst') or 'random' ones. picture_seed: of that draw, and of the order of equally bad
    ones.
    """

    k: Annotated[tuple[PositiveInt, ...], BeforeValidator(_listed), Field(min_length=1)] = (1, 2, 4, 8)
    metrics: Annotated[tuple[Metric, ...], BeforeValidator(_listed), Field(min_length=1)] = (
        "r@k",
        "recall-fraction",
        "map@r",
    )
    query_split: str | None = None
    gallery_split: str | None = None
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


@protocols.register("retrieval")
class Retrieval(Protocol):
    """Specs 9: Euclidean distance of the descriptors as they are, equal distances by row, a query never finds itself.

    Queries without a match ('lone') are left out of every ranking metric, and counted; in leave-one-out they stay in
    the gallery. NMI and F1 cluster every item, lone ones too, of queries and gallery together.
    """

    Options: ClassVar[type[ProtocolOptions]] = RetrievalOptions
    options: RetrievalOptions

    def splits(self, store: PatchStore, split: str | None) -> list[str]:
        """The splits whose rows have to be described. Raises InputError for a split beside query_split."""
        o = self.options
        if o.query_split is None or o.gallery_split is None:
            return [store.resolve_split(split)]
        if split is not None:
            raise InputError(f"query_split and gallery_split name what to evaluate: leave out the split {split!r}")
        return list(dict.fromkeys(store.resolve_split(each) for each in (o.query_split, o.gallery_split)))

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None) -> Evaluated:
        """The metrics of the used rows of the split, or splits. Raises InputError where no query has a match."""
        o = self.options
        splits = self.splits(store, split)
        gallery = _items(store, describe, splits[-1])
        queries = _items(store, describe, splits[0]) if len(splits) > 1 else None
        facts: dict[str, Any] = {
            **({"split": splits[0]} if queries is None else {"query_split": splits[0], "gallery_split": splits[1]}),
            "protocol": "leave-one-out" if queries is None else "query/gallery",
            "gallery": len(gallery.rows),
            "classes": len(np.unique(gallery.labels)),
            "ties": o.ties,
            "definitions": {name: DEFINITIONS[name] for name in o.metrics},
        }
        metrics: dict[str, float] = {}
        details: dict[str, float] = {}
        curves = {}
        ranked = [name for name in o.metrics if name in RANKED]
        if ranked:
            lists, source = describe.lists(gallery.rows) if isinstance(describe, Described) else (None, "none stored")
            found = retrieve(
                gallery, queries, ks=o.k, metrics=ranked, ties=o.ties, lists=lists if queries is None else None
            )
            for name, value in found.values.items():
                (details if name.startswith("recall-fraction") else metrics)[name] = float(value.mean())
            facts |= {"queries": len(found.query), "lone": found.lone, "neighbours": _said(found, lists, source)}
            curves["pictured"] = self._pictured(gallery, queries or gallery, found)
            self._store = store
        if {"nmi", "f1"} & set(o.metrics):
            self._cluster(gallery, queries, metrics, details, facts)
        return Evaluated(metrics, facts, details, curves)

    def plot(self, results: dict[str, Evaluated], file: Path) -> None:
        """Queries and their five nearest, right ones framed green, wrong ones red; a part for each descriptor. Raises
        InputError where nothing was ranked."""
        panels = []
        for name, each in results.items():
            if "pictured" not in each.curves:
                raise InputError(
                    f"nothing was ranked that could be drawn: ask for one of the metrics {', '.join(RANKED)}"
                )
            panels += [Panel(name, int(row), near[near >= 0]) for row, near in zip(*each.curves["pictured"])]
        draw_panels(self._store, panels, file)

    def _pictured(self, gallery: Items, asking: Items, found: Retrieved) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the queries to draw, (n,), and of their nearest, (n, 5), -1 padded."""
        chance = np.random.default_rng(self.options.picture_seed).permutation(len(found.query))
        order = np.lexsort((chance, -found.first)) if self.options.pictured == "worst" else np.argsort(chance)
        chosen = found.query[order[: self.options.pictures]]
        rows = asking.rows[chosen]
        near = nearest(gallery.descriptors, gallery.rows, SHOWN, queries=asking.descriptors[chosen], query_rows=rows)
        return rows, near.rows

    def _cluster(
        self,
        gallery: Items,
        queries: Items | None,
        metrics: dict[str, float],
        details: dict[str, float],
        facts: dict[str, Any],
    ) -> None:
        """NMI and F1 of k-means clusters of every item, a detail for each seed, their means as metrics."""
        o = self.options
        every = [gallery] if queries is None else [gallery, queries]
        descriptors = np.concatenate([each.descriptors for each in every])
        labels = np.concatenate([each.labels for each in every])
        clusters = o.clusters or len(np.unique(labels))
        figures: dict[str, list[float]] = {name: [] for name in ("nmi", "f1") if name in o.metrics}
        filled = []
        for seed in o.seeds:
            cluster = k_means(descriptors, clusters, seed, o.iterations)
            filled.append(len(np.unique(cluster)))
            for name, values in figures.items():
                values.append((nmi if name == "nmi" else pairwise_f1)(cluster, labels))
                details[f"{name}-seed-{seed}"] = values[-1]
        metrics |= {name: float(np.mean(values)) for name, values in figures.items()}
        facts |= {
            "clustered": len(labels),
            "clusters": clusters,
            "clusters_filled": filled,
            "seeds": list(o.seeds),
            "iterations": o.iterations,
        }


def _items(store: PatchStore, describe: Describe, split: str) -> Items:
    rows = store.rows(split)
    return Items(as_descriptors(describe(rows), rows), rows, store.label[rows])


def _said(found: Retrieved, lists: np.ndarray | None, source: str) -> str:
    """Where the rankings came from."""
    if found.listed:
        return f"from {source}"
    if found.depth is None:
        return "searched: every match placed in the whole ranking"
    why = source if lists is None else f"{source} have {lists.shape[1]} neighbours"
    return f"searched: up to the {found.depth} nearest ({why})"
