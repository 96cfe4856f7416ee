"""UBC PhotoTour: the false positive rate at 95 % recall over a store's list of matching and non-matching pairs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.metrics.fpr95 import fpr95_by_variant
from hardmine.metrics.overlap import BINS, overlap
from hardmine.metrics.roc import roc_curve, thinned
from hardmine.options import Options as ProtocolOptions
from hardmine.protocols.base import Curve, Describe, Evaluated, Protocol, protocols
from hardmine.protocols.phototour_figures import draw_histograms, draw_roc
from hardmine.store.distances import PAIRS_AT_ONCE, as_descriptors, listed_distances
from hardmine.store.patches import PatchStore


class PhotoTourOptions(ProtocolOptions):
    """pairs: the pair list's name; needed where the store has several."""

    pairs: str | None = None


@protocols.register("phototour")
class PhotoTour(Protocol):
    """Specs 7: distance = plain L2 of the descriptors; `fpr95` is the tie-safe rule, the other rules are named.

    Details: `similarity-overlap`, how far the similarities of matching and non-matching pairs overlap in 100 bins (see
    `metrics.overlap`). The similarity is the inner product, over -1..1, where descriptors have unit length, else the
    distance, over 0..the largest. Of unit descriptors also GOR's `non-matching-mean` and `non-matching-second-moment`
    of the inner product: 0 and 1/D for points spread evenly over the sphere.
    """

    Options: ClassVar[type[ProtocolOptions]] = PhotoTourOptions
    options: PhotoTourOptions

    def evaluate(self, store: PatchStore, describe: Describe, split: str | None) -> Evaluated:
        """FPR95 of the pairs both of whose rows are in `split` and used."""
        if not store.pair_names:
            raise InputError(
                f"{store.path} has no evaluation pair list: ingest a folder with m50_100000_100000_0.txt, or "
                "photographs or sequences with the option pairs"
            )
        listed = store.pairs(self.options.pairs)
        split = store.resolve_split(split)
        inside = np.zeros(len(store), bool)
        inside[store.rows(split)] = True
        keep = inside[listed.first] & inside[listed.second]
        if not keep.any():
            raise InputError(f"no pair of {listed.name!r} lies in the split {split!r} of {store.path}")
        first, second, match = listed.first[keep], listed.second[keep], listed.match[keep]
        rows = np.unique(np.concatenate([first, second]))
        descriptors = as_descriptors(describe(rows), rows)
        a, b = np.searchsorted(rows, first), np.searchsorted(rows, second)
        x = torch.from_numpy(descriptors)
        distance = listed_distances(x, torch.from_numpy(a), x, torch.from_numpy(b)).numpy()
        rates = fpr95_by_variant(distance, match)
        metrics = {"fpr95": rates.pop("tie-safe")} | {f"fpr95-{name}": rate for name, rate in rates.items()}
        roc = thinned(roc_curve(distance, match))
        unit = _of_unit_length(descriptors)
        details, curves = _similarity(_inner_products(descriptors, a, b) if unit else distance, match, unit)
        facts = {
            "pairs": listed.name,
            "split": split,
            "matching": int(match.sum()),
            "non_matching": int((~match).sum()),
            "outside_split": int((~keep).sum()),
            "lost_to_rejects": listed.lost,
            "partial": listed.lost > 0,
            "similarity": "inner product" if unit else "distance",
            "similarity_bins": BINS,
        }
        return Evaluated(metrics, facts, details, {"roc": (roc.fpr, roc.tpr), **curves})

    def plot(self, results: dict[str, Evaluated], file: Path) -> None:
        """ROC curves, false positive rate on a logarithmic axis, each one's FPR95 in the legend."""
        draw_roc(results, file)

    def histogram(self, results: dict[str, Evaluated], file: Path) -> None:
        """For each descriptor the similarities of matching and of non-matching pairs, and their overlap."""
        draw_histograms(results, file)


def _of_unit_length(descriptors: np.ndarray) -> bool:
    """Whether all descriptors but few (flat patches have none) have length 1."""
    length = np.linalg.norm(descriptors, axis=1)
    return bool((np.abs(length - 1) < 1e-3).mean() >= 0.99)


def _inner_products(descriptors: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float32 (P,): of the descriptors a[i] and b[i]."""
    out = np.empty(len(a), np.float32)
    for start in range(0, len(a), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        out[part] = np.einsum("nd,nd->n", descriptors[a[part]], descriptors[b[part]])
    return out


def _similarity(similarity: np.ndarray, match: np.ndarray, unit: bool) -> tuple[dict[str, float], dict[str, Curve]]:
    """What the similarities say, and their histograms: (edges, densities) of matching and non-matching pairs."""
    low, high = (-1.0, 1.0) if unit else (0.0, max(float(similarity.max()), 1e-30))
    found = overlap(similarity[match], similarity[~match], low, high)
    details = {"similarity-overlap": found.coefficient}
    if unit:
        others = similarity[~match].astype(np.float64)
        details |= {"non-matching-mean": float(others.mean()), "non-matching-second-moment": float((others**2).mean())}
    return details, {"matching": (found.edges, found.first), "non-matching": (found.edges, found.second)}
