"""UBC PhotoTour: the false positive rate at 95 % recall over a store's list of matching and non-matching pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.metrics.fpr95 import fpr95_by_variant
from hardmine.metrics.roc import roc_curve
from hardmine.protocols.base import Describe, Evaluated, Protocol, protocols
from hardmine.store.distances import as_descriptors, listed_distances
from hardmine.store.patches import PatchStore


@protocols.register("phototour")
class PhotoTour(Protocol):
    """Specs 7: distance = plain L2 of the descriptors; `fpr95` is the tie-safe rule, the other rules are named."""

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None, pairs: str | None) -> Evaluated:
        """FPR95 of the pairs both of whose rows are in `split` and used. pairs: the list's name, needed where the
        store has several."""
        if not store.pair_names:
            raise InputError(
                f"{store.path} has no evaluation pair list: ingest a folder with m50_100000_100000_0.txt, or "
                "photographs or sequences with the option pairs"
            )
        listed = store.pairs(pairs)
        split = store.resolve_split(split)
        inside = np.zeros(len(store), bool)
        inside[store.rows(split)] = True
        keep = inside[listed.first] & inside[listed.second]
        if not keep.any():
            raise InputError(f"no pair of {listed.name!r} lies in the split {split!r} of {store.path}")
        first, second, match = listed.first[keep], listed.second[keep], listed.match[keep]
        rows = np.unique(np.concatenate([first, second]))
        descriptors = torch.from_numpy(as_descriptors(describe(rows), rows))
        a, b = (torch.from_numpy(np.searchsorted(rows, side)) for side in (first, second))
        distance = listed_distances(descriptors, a, descriptors, b).numpy()
        rates = fpr95_by_variant(distance, match)
        metrics = {"fpr95": rates.pop("tie-safe")} | {f"fpr95-{name}": rate for name, rate in rates.items()}
        false_positive, true_positive, _ = roc_curve(distance, match)
        facts = {
            "pairs": listed.name,
            "split": split,
            "matching": int(match.sum()),
            "non_matching": int((~match).sum()),
            "outside_split": int((~keep).sum()),
            "lost_to_rejects": listed.lost,
            "partial": listed.lost > 0,
        }
        return Evaluated(metrics, facts, (false_positive, true_positive))

    def plot(self, results: dict[str, Evaluated], file: Path) -> None:
        """ROC curves, false positive rate on a logarithmic axis, each one's FPR95 in the legend."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 5), layout="constrained")
        axes: Any = figure.add_subplot()
        for name, result in results.items():
            if result.curve is not None:
                false_positive, true_positive = result.curve
                label = f"{name}: {100 * result.metrics['fpr95']:.2f} %"
                axes.plot(np.maximum(false_positive, 1e-5), true_positive, label=label)
        axes.axhline(0.95, color="grey", linewidth=0.6, linestyle=":")
        axes.set(xscale="log", xlim=(1e-4, 1), ylim=(0.6, 1.005))
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(title="FPR95", loc="lower right")
        figure.savefig(file, dpi=150)
