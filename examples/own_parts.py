"""A reader, a sampler and a loss of one's own, found by `ingest` and `train` under their names."""

from typing import ClassVar

import made_up
import numpy as np

from hardmine import ingest, losses, readers, samplers
from hardmine.mining.samplers.random import RandomPairs
from hardmine.options import Options, check
from hardmine.train.loop import train
from hardmine.train.losses.base import triplet_output
from hardmine.train.recipe import Recipe


@readers.register("inverted")
class Inverted(made_up.Reader):
    def read(self, numbers):
        return ((number, 255 - pixels) for number, pixels in super().read(numbers))


@samplers.register("neighbours-in-name")
class NeighboursInName(RandomPairs):
    def choose_classes(self, rng):
        return np.roll(self.classes, rng.integers(len(self.classes)))[: self.pairs]


@losses.register("cosine-hinge")
class CosineHinge(Options):
    needs_unit_norm: ClassVar[bool] = True
    needs_tuples: ClassVar[bool] = True
    margin: float = 0.3

    def __call__(self, batch, tuples=None, weight=None):
        return triplet_output(lambda a, p, n: (self.margin + (a * (n - p)).sum(1)).relu(), batch, tuples, weight)


def main(folder):
    ingest("inverted", folder, folder / "inverted.store", split="by-class:0.67")
    data = {"store": str(folder / "inverted.store"), "split": "train"}
    parts = {"sampler": {"name": "neighbours-in-name"}, "loss": {"name": "cosine-hinge", "margin": 0.5}}
    recipe = {"data": data, "network": {"name": "tfeat", "unit_norm": True}, "train": {"pairs": 8, "steps": 5}, **parts}
    return train(check(Recipe, recipe, "the recipe"), folder / "run").result
