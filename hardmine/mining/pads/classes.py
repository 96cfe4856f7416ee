"""PADS from the store: the learned distribution also chooses which classes meet in a batch.

Among thousands of classes two that are drawn evenly are hardly ever at the distances that the policy wants, whatever
the miner does afterwards. A mining round knows each class's nearest ones and how far they are; this is ours, not the
paper's. The sampler `pads-classes` draws groups of classes so; the miner then draws triplets among their items.
"""

from __future__ import annotations

import numpy as np
import torch

from hardmine.mining.pads.distribution import Distribution


def class_log_weights(distance: np.ndarray, distribution: Distribution) -> np.ndarray:
    """log p[b(d)] for classes at these distances, float64, shaped as `distance`; -inf where it is NaN or not drawn."""
    number = distribution.support.bin_of(torch.from_numpy(np.asarray(distance, np.float64))).numpy()
    with np.errstate(divide="ignore"):
        log_p = np.log(distribution.p)
    return np.where(np.isnan(distance) | (number < 0), -np.inf, log_p[np.maximum(number, 0)])


def item_distances(centroid: np.ndarray, nearest: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Root mean squared distance of an item of each class to one of its nearest classes, float64 (C, K), NaN padded.

    centroid: (C, D), means of unit descriptors. nearest: int64 (C, K), -1 padded. distance: (C, K), of the centroids.
    For unit vectors the mean of |x - y|^2 over both classes is |mean x - mean y|^2 + (1 - |mean x|^2) +
    (1 - |mean y|^2): what a triplet will see, while centroids lie nearer together the wider their classes are.
    """
    spread = np.maximum(1 - np.square(centroid.astype(np.float64)).sum(1), 0)
    squared = np.square(distance.astype(np.float64)) + spread[:, None] + spread[nearest]
    return np.where(nearest >= 0, np.sqrt(squared), np.nan)


def draw_places(distance: np.ndarray, distribution: Distribution, count: int, rng: np.random.Generator) -> np.ndarray:
    """At most `count` of the K candidates at these distances, float (K,), drawn one after the other without repetition,
    each in proportion to p[b(distance)] among those left: int64 (<= count,) places, in the order drawn.

    Where the weights of all candidates are 0 they are drawn evenly; otherwise one of weight 0 is not drawn.
    """
    log_weight = class_log_weights(distance, distribution)
    if not np.isfinite(log_weight).any():
        log_weight = np.where(np.isnan(distance), -np.inf, 0.0)
    # the largest of log w + Gumbel noise are draws without replacement in proportion to w
    score = log_weight - np.log(-np.log(np.maximum(rng.random(len(distance)), np.finfo(np.float64).tiny)))
    order = np.argsort(-score, kind="stable")[:count]
    return order[np.isfinite(log_weight[order])]
