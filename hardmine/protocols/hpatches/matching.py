"""`hpatches-matching`: nearest neighbours from a sequence's reference image to its other five, judged by their rank.

Balntas et al., CVPR 2017, section 5; hpatches/hpatches-benchmark, python/utils/tasks.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from hardmine.metrics.precision_recall import average_precision, step_precision
from hardmine.options import Options as ProtocolOptions
from hardmine.protocols.base import Describe, Evaluated, Protocol, protocols
from hardmine.protocols.hpatches.distances import Distance, nearest_two
from hardmine.protocols.hpatches.plot import plot_task
from hardmine.protocols.hpatches.strips import NOISES
from hardmine.protocols.hpatches.task import DescribedStrips, HPatchesOptions, select
from hardmine.store.patches import PatchStore

MEASURES = ("ap", "ap-matlab", "ap-ratio", "success")
GROUPS = {"view": "v_", "illum": "i_"}


@protocols.register("hpatches-matching")
class HPatchesMatching(Protocol):
    """Specs 8.3. Every reference patch is matched to its nearest in one strip; a match is right where it has the same
    number; average precision over matches by rising distance, with as many positives as patches.

    Cells, each the mean over sequences and their five images: `NOISE-ap`, `NOISE-ap-matlab`, `NOISE-ap-ratio`
    (MATLAB's, matches by rising ratio of the first to the second distance), `NOISE-success` (share of right matches),
    and the same for the sequences of each kind, `view-NOISE-ap`, ... `map` and its like are the means of the three
    noises over all sequences; `map-kinds`, as the benchmark's own figure has it, the mean of both kinds' means.
    """

    Options: ClassVar[type[ProtocolOptions]] = HPatchesOptions
    options: HPatchesOptions

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None) -> Evaluated:
        """See the class. Raises as `select` does."""
        selected = select(store, split, self.options)
        strips = DescribedStrips(selected, describe, self.options)
        found = np.empty((len(selected.names), len(NOISES), 5, len(MEASURES)))
        for number, name in enumerate(selected.names):
            reference = strips.strip(name, 0)
            for noise, kind in enumerate(NOISES.values()):
                for image in range(5):
                    other = strips.strip(name, kind + image)
                    found[number, noise, image] = _measured(reference, other, strips.distance)
        groups = {g: np.array([name.startswith(start) for name in selected.names]) for g, start in GROUPS.items()}
        overall = found.mean(axis=(0, 1, 2))
        cells = _cells("", found)
        for group, members in groups.items():
            if members.any():
                cells |= _cells(f"{group}-", found[members])
        metrics = {"map": overall[0], "map-matlab": overall[1], "map-ratio": overall[2], "success": overall[3]}
        if all(members.any() for members in groups.values()):
            cells["map-kinds"] = float(np.mean([found[members, ..., 0].mean() for members in groups.values()]))
        facts = selected.facts() | strips.facts
        facts |= {f"{group}_sequences": int(members.sum()) for group, members in groups.items()}
        return Evaluated({name: float(value) for name, value in metrics.items()}, facts, cells)

    def plot(self, results: dict[str, Evaluated], file: Path) -> None:
        """The dot plot of the benchmark's paper: bars are `map`, dots the mAP of each noise and kind of sequence."""
        plot_task(results, file, "{group}-{noise}-ap", tuple(GROUPS), "matching mAP")


def _measured(reference: np.ndarray, other: np.ndarray, distance: Distance) -> tuple[float, ...]:
    """The MEASURES of one pair of strips (N, D)."""
    nearest, first, second = nearest_two(reference, other, distance)
    right = nearest == np.arange(len(reference))
    ratio = np.divide(first, second, out=np.ones_like(first), where=second > 0)  # two at distance 0 are told by nothing
    return (
        average_precision(-first, right, len(right)),
        step_precision(-first, right, len(right)),
        step_precision(-ratio, right, len(right)),
        float(right.mean()),
    )


def _cells(prefix: str, found: np.ndarray) -> dict[str, float]:
    means = found.mean(axis=(0, 2))
    return {
        f"{prefix}{noise}-{measure}": float(means[n, m])
        for n, noise in enumerate(NOISES)
        for m, measure in enumerate(MEASURES)
    }
