"""How well clusters of descriptors agree with classes: seeded k-means, NMI, pairwise F1 (specs 9.4, 9.5)."""

from __future__ import annotations

import warnings

import numpy as np

from hardmine.errors import InputError


def k_means(descriptors: np.ndarray, clusters: int, seed: int, iterations: int = 20) -> np.ndarray:
    """Cluster of each row, int64 (N,) in 0..clusters-1, by scikit-learn's k-means with one seeded random start.

    descriptors: float (N, D), of any norm: distances are Euclidean and centres means, neither is normalised. clusters:
    K, the number of classes as a rule. The start is K different rows, as in faiss' k-means; published figures come from
    several programs, so compare with them only loosely (register A16). Where fewer than K descriptors are distinct,
    fewer clusters are filled. Raises InputError where there are fewer rows than clusters.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    if not 1 <= clusters <= len(descriptors):
        raise InputError(f"{len(descriptors)} descriptors cannot form {clusters} clusters")
    method = KMeans(clusters, init="random", n_init=1, max_iter=iterations, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct descriptors than clusters: see above
        return method.fit_predict(np.ascontiguousarray(descriptors, np.float32)).astype(np.int64)


def nmi(clusters: np.ndarray, labels: np.ndarray) -> float:
    """Normalised mutual information 2 I(C; Y) / (H(C) + H(Y)), in [0, 1]; 1 where both have one group only."""
    from sklearn.metrics import normalized_mutual_info_score

    _check(clusters, labels)
    return float(normalized_mutual_info_score(labels, clusters))


def pairwise_f1(clusters: np.ndarray, labels: np.ndarray) -> float:
    """F1 of the question whether two items share a cluster as they share a class, in [0, 1]; 0 where it is 0 / 0.

    TP = sum over cells of C(n_cy, 2), precision TP / sum_c C(n_c, 2), recall TP / sum_y C(n_y, 2).
    """
    from sklearn.metrics.cluster import contingency_matrix

    _check(clusters, labels)
    table = contingency_matrix(labels, clusters, sparse=True)
    together, by_class, by_cluster = (
        _pairs(counts) for counts in (table.data, np.asarray(table.sum(1)), np.asarray(table.sum(0)))
    )
    return 2 * together / (by_class + by_cluster) if together else 0.0


def _pairs(counts: np.ndarray) -> int:
    counts = counts.astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _check(clusters: np.ndarray, labels: np.ndarray) -> None:
    if clusters.shape != labels.shape or clusters.ndim != 1 or not len(labels):
        raise InputError(f"{clusters.shape} clusters for {labels.shape} labels; expected (N,) for both, N > 0")
