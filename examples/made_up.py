"""What the examples work on: a patch store of textures, each seen six times with noise, and a network of one layer."""

import numpy as np
import torch
from torch import nn

from hardmine import PatchStore, ingest, readers
from hardmine.options import Options
from hardmine.pipeline.readers.base import Candidates
from hardmine.train.networks import Network

CLASSES, EACH, SIDE = 24, 6, 16


def textures():
    """Patches uint8 (144, 16, 16) and their labels, in order of class."""
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(CLASSES), EACH)
    patches = (
        128 + 40 * rng.normal(size=(CLASSES, SIDE, SIDE))[labels] + 50 * rng.normal(size=(len(labels), SIDE, SIDE))
    )
    return patches.clip(0, 255).astype(np.uint8), labels


@readers.register("made-up")
class Reader:
    """The textures; no file is read."""

    Options = Options

    def __init__(self, src, options):
        self.patches, self.labels = textures()

    def candidates(self):
        return Candidates(self.labels, np.array([f"patch {i}".encode() for i in range(len(self.labels))]), (SIDE, SIDE))

    def read(self, numbers):
        for number in numbers:
            yield int(number), self.patches[number]


def store(folder):
    """Two thirds of the classes are the split `train`, the others `val`."""
    ingest("made-up", folder, folder / "store", split="by-class:0.67")
    return PatchStore.open(folder / "store")


class Small(Network):
    """One linear layer, normalised."""

    name, side, dim, unit_norm = "small", SIDE, 16, True

    def __init__(self):
        super().__init__(Options())
        torch.manual_seed(0)
        self.layer = nn.Linear(SIDE * SIDE, self.dim)

    def forward(self, pixels):
        return nn.functional.normalize(self.layer(pixels.flatten(1) - 0.5), dim=1)
