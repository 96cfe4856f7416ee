"""A small world for tests of mining: a patch store of random patches, and networks of a few lines.

As a program (`python mining_world.py STORE MINING SLEEP`) it mines that store slowly, to be killed."""

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Candidates, Options, readers
from hardmine.pipeline.views import Views
from hardmine.store.fingerprint import weights_sha256
from hardmine.store.patches import PatchStore

SIDE, DIM = 12, 6


@readers.register("test-patches")
class Patches:
    """Reads patches.npy (N, S, S) and labels.json of a folder."""

    class Options(Options):
        pass

    def __init__(self, src, options):
        self.pixels = np.load(src / "patches.npy")
        self.labels = json.loads((src / "labels.json").read_text())

    def candidates(self):
        source = np.array([f"item {i}".encode() for i in range(len(self.labels))])
        return Candidates(np.array(self.labels, np.int64), source, self.pixels.shape[1:])

    def read(self, numbers):
        for number in numbers:
            yield int(number), self.pixels[number]


def make_store(path: Path, sizes=(3, 1, 4, 2, 2), *, constant=(), split=None, limit=None, seed=0) -> PatchStore:
    """Classes of these sizes; items `constant` are black; `limit` patches of a class are used at most."""
    source = path.with_name(path.name + "-source")
    source.mkdir()
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (sum(sizes), SIDE, SIDE), dtype=np.uint8)
    pixels[list(constant)] = 0
    np.save(source / "patches.npy", pixels)
    (source / "labels.json").write_text(json.dumps(np.repeat(np.arange(len(sizes)), sizes).tolist()))
    ingest("test-patches", source, path, split=split, max_per_class=limit, shard_rows=7)
    return PatchStore.open(path)


class Tiny(nn.Module):
    """One linear layer over 8 x 8 pixels, normalised, after a dropout that evaluation must switch off."""

    name, side, dim, unit_norm = "tiny", 8, DIM, True

    def __init__(self, seed: int = 0, sleep: float = 0.0):
        super().__init__()
        weight = torch.randn(DIM, 64, generator=torch.Generator().manual_seed(seed))
        self.weight, self.dropout, self.sleep, self.calls = nn.Parameter(weight), nn.Dropout(0.5), sleep, 0

    def identity(self):
        weights = weights_sha256(self.state_dict())
        return {"network": self.name, "weights": weights, "options": {}, "side": self.side, "dim": self.dim}

    def forward(self, pixels):
        time.sleep(self.sleep)
        self.calls += len(pixels)
        out = self.dropout(pixels).flatten(1) - 0.5
        return nn.functional.normalize(out @ self.weight.T + 1e-6, dim=1)


class Spoilt(Tiny):
    """What diverged training leaves: `nan` in the last item of each batch, or equal descriptors (`constant`)."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def forward(self, pixels):
        out = super().forward(pixels).clone()
        if self.how == "nan":
            out[-1, 0] = torch.nan
        else:
            out[:] = out.new_tensor([1.0] + [0.0] * (DIM - 1))
        return out


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with the digest of its bytes."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


OPTIONS = {"views": Views(per_class=4), "batch": 4, "shard_rows": 8, "neighbours": 3}


if __name__ == "__main__":
    from hardmine.mining.mine import mine

    mine(PatchStore.open(sys.argv[1]), Path(sys.argv[2]), Tiny(sleep=float(sys.argv[3])), **OPTIONS)
