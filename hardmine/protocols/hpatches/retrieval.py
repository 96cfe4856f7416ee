"""`hpatches-retrieval`: finding a reference patch's five other images among patches of other sequences.

Balntas et al., CVPR 2017, section 5; hpatches/hpatches-benchmark, python/utils/tasks.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from hardmine.errors import InputError
from hardmine.metrics.precision_recall import average_precisions_of_ranks
from hardmine.options import Options as ProtocolOptions
from hardmine.protocols.base import Describe, Evaluated, Protocol, protocols
from hardmine.protocols.hpatches.distances import matrix
from hardmine.protocols.hpatches.lists import DISTRACTORS, QUERIES, SEED, retrieval_lists
from hardmine.protocols.hpatches.plot import plot_task
from hardmine.protocols.hpatches.splits import task_file
from hardmine.protocols.hpatches.strips import NOISES
from hardmine.protocols.hpatches.task import DescribedStrips, HPatchesOptions, Selected, select
from hardmine.protocols.hpatches.task_files import Items, read_items
from hardmine.store.patches import PatchStore

POOLS = (100, 500, 1000, 5000, 10000, 15000, 20000)  # entries of the list that are ranked, the positives included
POSITIVES = 5
BLOCK = 256  # queries at once: 40 MB of distances to 20,000 distractors
GENERATED = "generated"  # lists that are not the benchmark's
LISTS = ("queries", "distractors")


class RetrievalOptions(HPatchesOptions):
    """Options of `hpatches-retrieval`."""

    queries: int = Field(QUERIES, ge=1, description="where lists are drawn")
    distractors: int = Field(DISTRACTORS, ge=1, description="where lists are drawn; of a list that is read, the first")
    seed: int = Field(SEED, ge=0, lt=2**32, description="of the lists that are drawn; 42 is the benchmark's")


@protocols.register("hpatches-retrieval")
class HPatchesRetrieval(Protocol):
    """Specs 8.4. A query's list is its five positives, then the distractors of other sequences in their order; of it
    the first K entries are ranked, for each pool K.

    Cells: `NOISE-K-ap` and `NOISE-K-ap-matlab`, means over queries. `map` is the mean of the three noises in the
    largest pool, `map-pools` the mean over all pools, which is what the benchmark's own figure shows.
    """

    Options: ClassVar[type[ProtocolOptions]] = RetrievalOptions
    options: RetrievalOptions

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None) -> Evaluated:
        """See the class. Raises InputError, and as `select` does."""
        selected = select(store, split, self.options)
        queries, distractors, facts = self._lists(store, selected)
        strips = DescribedStrips(selected, describe, self.options)
        pools = POOLS[: int(np.searchsorted(POOLS, POSITIVES + len(distractors))) + 1]
        query, distractor = _reference(strips, selected, queries), _reference(strips, selected, distractors)
        found = np.empty((2, len(queries), len(NOISES), len(pools)))
        for number, name in enumerate(selected.names):
            asked = np.flatnonzero(queries.s == number)
            if not len(asked):
                continue
            others = distractor[distractors.s != number]
            kinds = [kind + image for kind in NOISES.values() for image in range(POSITIVES)]
            near = np.stack([strips.strip(name, kind)[queries.i[asked]] for kind in kinds], axis=1)
            for part in np.split(np.arange(len(asked)), range(BLOCK, len(asked), BLOCK)):
                positive = np.stack(
                    [matrix(query[asked[p], None], near[p], strips.distance)[0] for p in part.tolist()]
                ).reshape(len(part), len(NOISES), POSITIVES)
                ranks = _ranks(positive, matrix(query[asked[part]], others, strips.distance), pools)
                found[:, asked[part]] = average_precisions_of_ranks(ranks)
        python, matlab = found.mean(axis=1)
        cells = {
            f"{noise}-{pool}-{measure}": float(values[n, k])
            for n, noise in enumerate(NOISES)
            for k, pool in enumerate(pools)
            for measure, values in (("ap", python), ("ap-matlab", matlab))
        }
        cells |= {f"{noise}-ap": float(python[n, -1]) for n, noise in enumerate(NOISES)}
        metrics = {"map": python[:, -1].mean(), "map-matlab": matlab[:, -1].mean(), "map-pools": python.mean()}
        facts |= {"pools": ", ".join(map(str, pools)), "positives_per_query": POSITIVES}
        found_facts = selected.facts() | strips.facts | facts
        return Evaluated({name: float(value) for name, value in metrics.items()}, found_facts, cells)

    def plot(self, results: dict[str, Evaluated], file: Path) -> None:
        """The dot plot of the benchmark's paper: bars are `map`, dots the mAP of each noise in the largest pool."""
        plot_task(results, file, "{noise}-ap", ("",), "retrieval mAP")

    def _lists(self, store: PatchStore, selected: Selected) -> tuple[Items, Items, dict[str, Any]]:
        """Queries, distractors and facts about them: the benchmark's files where both are there, else drawn."""
        o, lengths = self.options, selected.lengths
        files = [task_file(o.tasks, f"retr_{name}_split-{selected.name}.csv") for name in LISTS]
        present = [file for file in files if file is not None]
        lost = 0
        if len(present) == 1:
            raise InputError(f"{o.tasks} has {present[0].name}, but not both of retr_{{{','.join(LISTS)}}}_*.csv")
        if present:
            (queries, lost_queries), (distractors, lost_distractors) = (read_items(file, lengths) for file in present)
            lost = sum(lost_queries.values()) + sum(lost_distractors.values())
            distractors = distractors.only(np.arange(len(distractors)) < o.distractors)
            made = f"the benchmark's files in {o.tasks}"
            if not len(queries) or not len(distractors):
                raise InputError(f"{o.tasks}: no query or no distractor is of the {len(lengths)} sequences there are")
        else:
            contrast = np.concatenate([_contrast(store, selected.strips.rows[name][0]) for name in selected.names])
            sizes = tuple(lengths.values())
            queries, distractors = retrieval_lists(sizes, contrast, o.queries, o.distractors, o.seed)
            official = selected.official and (o.queries, o.distractors, o.seed) == (QUERIES, DISTRACTORS, SEED)
            made = "drawn again by the benchmark's rule" if official else GENERATED
        for number, name in enumerate(selected.names):
            if (queries.s == number).any() and not (distractors.s != number).any():
                raise InputError(
                    f"all {len(distractors)} distractors are of {name}, as are queries: more sequences are needed"
                )
        own = np.bincount(distractors.s, minlength=len(lengths))
        ranked = len(distractors) - own[queries.s]
        facts: dict[str, Any] = {
            "lists": made,
            "generated": made == GENERATED,
            "queries": len(queries),
            "distractors": len(distractors),
            "distractors_per_query": f"{ranked.min()} to {ranked.max()}, those of its own sequence left out",
            "rows_of_missing_sequences": lost,
        }
        if not present:
            facts["seed"] = o.seed
        return queries, distractors, facts


def _reference(strips: DescribedStrips, selected: Selected, items: Items) -> np.ndarray:
    """The items' descriptors, float32 (n, D)."""
    out = np.zeros((0, 0), np.float32)
    for number, name in enumerate(selected.names):
        mine = items.s == number
        if mine.any():
            values = strips.strip(name, 0)
            if not out.size:
                out = np.empty((len(items), values.shape[1]), np.float32)
            out[mine] = values[items.i[mine]]
    return out


def _ranks(positive: np.ndarray, distances: np.ndarray, pools: tuple[int, ...]) -> np.ndarray:
    """Places of the positives in each pool, int64 (n, noises, pools, 5), ascending.

    positive: (n, noises, 5), distances of a query's positives. distances: (n, m) to the distractors in list order. The
    positives head the list, so that a stable sort has them in front of a distractor at the same distance.
    """
    ends = np.minimum(np.array(pools) - POSITIVES, distances.shape[1])
    nearest = np.sort(positive, axis=2)
    closer = np.zeros((*positive.shape[:2], len(pools), POSITIVES), np.int64)
    for noise, place in np.ndindex(positive.shape[1:]):
        less = distances < nearest[:, noise, place, None]
        start = total = 0
        for pool, end in enumerate(ends.tolist()):
            total = total + np.count_nonzero(less[:, start:end], axis=1)
            closer[:, noise, pool, place] = total
            start = end
    return closer + np.arange(1, POSITIVES + 1)


def _contrast(store: PatchStore, rows: np.ndarray) -> np.ndarray:
    """Standard deviation of each patch's grey values, float64 (n,)."""
    return store.gather(rows).reshape(len(rows), -1).std(axis=1, dtype=np.float64)
