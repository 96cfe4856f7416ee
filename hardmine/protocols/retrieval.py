"""Image retrieval and clustering: R@K, MAP@R, mAP, NMI and F1 of a split, or of queries against a gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hardmine.errors import InputError
from hardmine.metrics.clustering import k_means, nmi, pairwise_f1
from hardmine.options import Options as ProtocolOptions
from hardmine.protocols.base import Describe, Evaluated, Protocol, protocols
from hardmine.protocols.described import Described
from hardmine.protocols.retrieval_benchmarks import settled, shortfall
from hardmine.protocols.retrieval_figures import RANKED, Items, Retrieved, retrieve
from hardmine.protocols.retrieval_options import DEFINITIONS, LONE, RetrievalOptions
from hardmine.protocols.retrieval_pictures import Panel, draw_panels
from hardmine.store.distances import as_descriptors
from hardmine.store.patches import PatchStore
from hardmine.store.search import nearest

SHOWN = 5  # neighbours beside a pictured query


@protocols.register("retrieval")
class Retrieval(Protocol):
    """Specs 9 to 11: Euclidean distance of the descriptors as they are, equal distances by row, a query never finds
    itself. With the option `protocol`, a published benchmark.

    Queries without a match ('lone') are left out of every ranking metric, unless `lone` says otherwise, and counted; in
    leave-one-out they stay in the gallery. NMI and F1 cluster every item, lone ones too, of queries and gallery
    together.
    """

    Options: ClassVar[type[ProtocolOptions]] = RetrievalOptions
    options: RetrievalOptions

    def __init__(self, options: RetrievalOptions):
        settled_options, self.benchmark, self.changed = settled(options)
        super().__init__(settled_options)

    def splits(self, store: PatchStore, split: str | None) -> list[str]:
        """The splits whose rows have to be described. Raises InputError for a split beside query_split, or other than
        the benchmark's, or where the store lacks one of the benchmark's."""
        o, benchmark = self.options, self.benchmark
        if benchmark is not None:
            missing = [name for name in benchmark.sizes if name not in store.split_names]
            if missing:
                raise InputError(
                    f"{store.path} has no split {missing[0]!r} (it has {', '.join(store.split_names)}), which the "
                    f"protocol {benchmark.name!r} is about: ingest the dataset with the reader {benchmark.name!r}"
                )
            if benchmark.split is not None and split not in (None, benchmark.split):
                raise InputError(
                    f"the protocol {benchmark.name!r} is about {benchmark.split!r}, not the split {split!r}"
                )
            split = benchmark.split or split
        if o.query_split is None or o.gallery_split is None:
            return [store.resolve_split(split)]
        if split is not None:
            raise InputError(f"query_split and gallery_split name what to evaluate: leave out the split {split!r}")
        return list(dict.fromkeys(store.resolve_split(each) for each in (o.query_split, o.gallery_split)))

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None) -> Evaluated:
        """The metrics of the used rows of the split, or splits. Raises InputError where no query has a match."""
        o = self.options
        splits = self.splits(store, split)
        gallery = self._items(store, describe, splits[-1])
        queries = self._items(store, describe, splits[0]) if len(splits) > 1 else None
        facts: dict[str, Any] = {
            **({"split": splits[0]} if queries is None else {"query_split": splits[0], "gallery_split": splits[1]}),
            "protocol": "leave-one-out" if queries is None else "query/gallery",
            "gallery": len(gallery.rows),
            "classes": len(np.unique(gallery.labels)),
            "ties": o.ties,
            "definitions": {name: DEFINITIONS[name] for name in o.metrics},
        }
        if queries is not None:
            facts["distractors"] = int((~np.isin(gallery.labels, queries.labels)).sum())
        if o.junk is not None:
            facts["junk_dropped"] = int((store.used & self._is_junk(store)).sum())
        facts |= self._published(dict(zip(splits, [gallery] if queries is None else [queries, gallery])))
        metrics: dict[str, float] = {}
        details: dict[str, float] = {}
        curves = {}
        ranked = [name for name in o.metrics if name in RANKED]
        if ranked:
            lists, source = describe.lists(gallery.rows) if isinstance(describe, Described) else (None, "none stored")
            found = retrieve(
                gallery, queries, ks=o.k, metrics=ranked, ties=o.ties, lists=lists if queries is None else None
            )
            self._figures(found, metrics, details)
            facts |= {"queries": len(found.query), "lone": found.lone, "lone_queries": LONE[o.lone]}
            if o.left_out_by is not None:
                facts[f"left_out_by_{o.left_out_by}"] = int(found.left_out.sum())
            facts["neighbours"] = _said(found, lists, source)
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

    def _items(self, store: PatchStore, describe: Describe, split: str) -> Items:
        """The items of a split but junk. Raises InputError where the store lacks the column to leave out by."""
        rows = store.rows(split)
        if self.options.junk is not None:
            rows = rows[~self._is_junk(store)[rows]]
        groups, by = None, self.options.left_out_by
        if by is not None:
            column = store.column(by)
            if column is None or column.ndim != 1:
                raise InputError(f"{store.path} has no column {by!r} with a value for each item, to leave items out by")
            groups = column[rows]
        return Items(as_descriptors(describe(rows), rows), rows, store.label[rows], groups)

    def _is_junk(self, store: PatchStore) -> np.ndarray:
        """bool (N,)."""
        junk, raw = self.options.junk, store.raw_label
        if isinstance(junk, str) != (raw.dtype.kind == "S"):
            kind = "words" if raw.dtype.kind == "S" else "numbers"
            raise InputError(f"junk = {junk!r}, and the raw labels of {store.path} are {kind}")
        return raw == (junk.encode() if isinstance(junk, str) else junk)

    def _published(self, items: dict[str, Items]) -> dict[str, Any]:
        """What is to be said of the benchmark, against what is there of it."""
        if self.benchmark is None:
            return {}
        found = {
            split: {
                w: len(np.unique(each.labels)) if w == "classes" else len(each.rows)
                for w in self.benchmark.sizes[split]
            }
            for split, each in items.items()
        }
        facts: dict[str, Any] = {
            "benchmark": self.benchmark.name,
            "expected": dict(self.benchmark.sizes),
            "found": found,
        }
        facts |= {"changed": self.changed} if self.changed else {}
        return facts | ({"partial": True} if shortfall(found, self.benchmark) else {})

    def _figures(self, found: Retrieved, metrics: dict[str, float], details: dict[str, float]) -> None:
        """The figures of the rankings, by the names that the benchmark has for them."""
        hit = "r@" if self.benchmark is None else self.benchmark.hit
        every = len(found.query) + found.lone
        for name, value in found.values.items():
            into = details if name.startswith("recall-fraction") else metrics
            called = name.replace("r@", hit) if name.startswith("r@") else name
            into[called] = float(value.sum() / every if self.options.lone == "miss" else value.mean())
            if self.options.lone == "both":
                details[f"{called}-all-queries"] = float(value.sum() / every)

    def _pictured(self, gallery: Items, asking: Items, found: Retrieved) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the queries to draw, (n,), and of their nearest, (n, 5), -1 padded."""
        chance = np.random.default_rng(self.options.picture_seed).permutation(len(found.query))
        order = np.lexsort((chance, -found.first)) if self.options.pictured == "worst" else np.argsort(chance)
        chosen = found.query[order[: self.options.pictures]]
        rows, more = asking.rows[chosen], int(found.left_out[chosen].max(initial=0))
        near = nearest(
            gallery.descriptors, gallery.rows, SHOWN + more, queries=asking.descriptors[chosen], query_rows=rows
        ).rows
        if more and gallery.groups is not None and asking.groups is not None:
            at = np.searchsorted(gallery.rows, np.maximum(near, 0)).clip(max=len(gallery.rows) - 1)
            out = (gallery.labels[at] == asking.labels[chosen, None]) & (
                gallery.groups[at] == asking.groups[chosen, None]
            )
            kept = np.argsort((near < 0) | out, axis=1, kind="stable")[:, :SHOWN]
            near = np.where(np.take_along_axis(out, kept, 1), -1, np.take_along_axis(near, kept, 1))
        return rows, near

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


def _said(found: Retrieved, lists: np.ndarray | None, source: str) -> str:
    """Where the rankings came from."""
    if found.listed:
        return f"from {source}"
    if found.depth is None:
        return "searched: every match placed in the whole ranking"
    why = source if lists is None else f"{source} have {lists.shape[1]} neighbours"
    return f"searched: up to the {found.depth} nearest ({why})"
