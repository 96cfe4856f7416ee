"""`hpatches-verification`: how well distances tell pairs of one spot from pairs of two.

Balntas et al., CVPR 2017, section 5; hpatches/hpatches-benchmark, python/utils/tasks.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hardmine.errors import InputError
from hardmine.metrics.precision_recall import average_precision, roc_area, step_precision
from hardmine.options import Options as ProtocolOptions
from hardmine.protocols.base import Describe, Evaluated, Protocol, protocols
from hardmine.protocols.hpatches.distances import listed
from hardmine.protocols.hpatches.lists import PAIRS, SEED, Lists, kept_verification_lists
from hardmine.protocols.hpatches.plot import plot_task
from hardmine.protocols.hpatches.splits import task_file
from hardmine.protocols.hpatches.strips import NOISES
from hardmine.protocols.hpatches.task import DescribedStrips, HPatchesOptions, Selected, mean_of, select
from hardmine.protocols.hpatches.task_files import Pairs, read_pairs
from hardmine.store.patches import PatchStore

IMBALANCE = 0.2  # positives for each negative
GENERATED = "generated"  # lists that are not the benchmark's
LISTS = ("pos", "neg_intra", "neg_inter")


class VerificationOptions(HPatchesOptions):
    """Options of `hpatches-verification`."""

    duplicates: Literal["keep", "drop"] = Field("keep", description="rows of a list that repeat an earlier row")
    pairs: int = Field(PAIRS, ge=10, description="rows of each list, where lists are drawn")
    seed: int = Field(SEED, ge=0, lt=2**32, description="of the lists that are drawn; 42 is the benchmark's")
    cache: Path | None = Field(None, description="a folder to keep drawn lists in; drawing takes half a minute")


@protocols.register("hpatches-verification")
class HPatchesVerification(Protocol):
    """Specs 8.2. Scores are negative distances over [all negatives; positives], in that order.

    Cells, for each noise and kind of negatives: `balanced-NOISE-NEGATIVES-auc`, the ROC area with all positives;
    `imbalanced-NOISE-NEGATIVES-ap` (and `-ap-matlab`), the average precision with the first 0.2 positives for each
    negative. `map` is the mean of the six imbalanced ones, `auc` of the six balanced ones.
    """

    Options: ClassVar[type[ProtocolOptions]] = VerificationOptions
    options: VerificationOptions

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None) -> Evaluated:
        """See the class. Raises InputError, and as `select` does."""
        selected = select(store, split, self.options)
        lists, facts = self._lists(selected)
        strips = DescribedStrips(selected, describe, self.options)
        start = np.cumsum([0, *selected.lengths.values()])[:-1]
        last = max(int(max(pairs.t1.max(), pairs.t2.max())) for pairs in lists)  # the benchmark's lists end at image 4
        cells: dict[str, float] = {}
        for noise, kind in NOISES.items():
            values = strips.strips([0, *range(kind, kind + last)])
            positive, intra, inter = (_distances(values, pairs, start, strips) for pairs in lists)
            cells |= _cells(f"{noise}-inter", inter, positive) | _cells(f"{noise}-intra", intra, positive)
        metrics = {
            "map": mean_of(cells, "ap", without="matlab"),
            "map-matlab": mean_of(cells, "ap", "matlab"),
            "auc": mean_of(cells, "auc"),
        }
        return Evaluated(metrics, selected.facts() | strips.facts | facts, cells)

    def plot(self, results: dict[str, Evaluated], file: Path) -> None:
        """The dot plot of the benchmark's paper: bars are `map`, dots the six imbalanced average precisions."""
        plot_task(results, file, "imbalanced-{noise}-{group}-ap", ("inter", "intra"), "verification mAP")

    def _lists(self, selected: Selected) -> tuple[Lists, dict[str, Any]]:
        """The lists and facts about them: the benchmark's files where all three are there, else drawn."""
        o, lengths = self.options, selected.lengths
        files = [task_file(o.tasks, f"verif_{name}_split-{selected.name}.csv") for name in LISTS]
        present = [file for file in files if file is not None]
        lost: dict[str, int] = {}
        if present and len(present) < len(files):
            raise InputError(f"{o.tasks} has {present[0].name}, but not all three of verif_{{{','.join(LISTS)}}}_*.csv")
        if present:
            found = [read_pairs(file, lengths) for file in present]
            for _, each in found:
                for name, count in each.items():
                    lost[name] = lost.get(name, 0) + count
            positives, intra, inter = (pairs for pairs, _ in found)
            made = f"the benchmark's files in {o.tasks}"
        else:
            sizes = tuple(lengths.values())
            positives, intra, inter = kept_verification_lists(o.cache, sizes, o.pairs, o.seed)
            official = selected.official and (o.pairs, o.seed) == (PAIRS, SEED)
            made = "the official lists, drawn again by the benchmark's rule" if official else GENERATED
        lists = (positives, intra, inter)
        if not all(map(len, lists)):
            raise InputError(f"{o.tasks}: no pair of a list lies in the {len(lengths)} sequences that are there")
        repeats = [len(pairs) - len(pairs.firsts()) for pairs in lists]
        if o.duplicates == "drop":
            positives, intra, inter = (pairs.only(pairs.firsts()) for pairs in lists)
        facts: dict[str, Any] = {
            "lists": made,
            "generated": made == GENERATED,
            "positives": len(positives),
            "negatives": f"{len(inter)} inter, {len(intra)} intra",
            "repeated_rows": f"{repeats[0]} of the positives, {repeats[2]} inter, {repeats[1]} intra",
            "repeats": o.duplicates,
            "negatives_of_one_patch": int(((inter.s1 == inter.s2) & (inter.i1 == inter.i2)).sum()),
            "rows_of_missing_sequences": sum(lost.values()),
        }
        if not present:
            facts["seed"] = o.seed
        return (positives, intra, inter), facts


def _distances(values: np.ndarray, pairs: Pairs, start: np.ndarray, strips: DescribedStrips) -> np.ndarray:
    """Distances float64 (P,) of the pairs. values: (images, patches, D), the reference and one noise's strips."""
    patches, flat = values.shape[1], values.reshape(-1, values.shape[2])
    first = pairs.t1.astype(np.int64) * patches + start[pairs.s1] + pairs.i1
    second = pairs.t2.astype(np.int64) * patches + start[pairs.s2] + pairs.i2
    return listed(flat, first, flat, second, strips.distance)


def _cells(where: str, negative: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    scores = -np.concatenate([negative, positive])
    labels = np.arange(len(scores)) >= len(negative)
    few = len(negative) + max(1, int(IMBALANCE * len(negative)))
    return {
        f"balanced-{where}-auc": roc_area(scores, labels),
        f"imbalanced-{where}-ap": average_precision(scores[:few], labels[:few]),
        f"imbalanced-{where}-ap-matlab": step_precision(scores[:few], labels[:few]),
    }
