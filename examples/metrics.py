"""Figures of one's own arrays, without a store."""

import numpy as np

from hardmine import Items, fpr95, retrieve


def main():
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(50), 6)
    descriptors = rng.normal(size=(50, 16))[labels] + rng.normal(size=(300, 16))
    everything = Items(descriptors, np.arange(300), labels)
    found = retrieve(everything, ks=(1, 8), metrics=("r@k", "map@r"))
    figures = {name: float(value.mean()) for name, value in found.values.items()}
    # queries against a gallery, without what the query's own camera saw of it
    camera, query = rng.integers(1, 5, 300), np.arange(300) % 6 == 0
    sides = [Items(descriptors[k], np.flatnonzero(k), labels[k], camera[k]) for k in (~query, query)]
    found = retrieve(*sides, ks=(1,), metrics=("r@k", "map"))
    figures |= {"rank-1": float(found.values["r@1"].mean()), "map": float(found.values["map"].mean())}
    first, second = rng.integers(0, 300, (2, 5000))
    distance = np.linalg.norm(descriptors[first] - descriptors[second], axis=1)
    return figures | {"fpr95": fpr95(distance, labels[first] == labels[second])}
