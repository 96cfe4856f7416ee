"""A patch store in the shape of HPatches, made on the spot, and descriptors for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from hardmine.pipeline.ingest import ingest
from hardmine.store.patches import PatchStore

KINDS = ["ref", *(f"{noise}{image}" for noise in "eht" for image in range(1, 6))]


def release(folder: Path, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Write strips of noise; returns name to uint8 (16, N, 65, 65). The last patch of each reference is flat."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, patches in sizes.items():
        (folder / name).mkdir(parents=True)
        made[name] = rng.integers(0, 256, (16, patches, 65, 65), dtype=np.uint8)
        made[name][0, -1] = 77
        for kind, strip in zip(KINDS, made[name], strict=True):
            Image.fromarray(strip.reshape(-1, 65)).save(folder / name / f"{kind}.png", compress_level=0)
    return made


def stored(folder: Path, sizes: Mapping[str, int], **options: object) -> PatchStore:
    """The store of such a release."""
    release(folder / "src", sizes)
    ingest("hpatches", folder / "src", folder / "store", options=dict(options))
    return PatchStore.open(folder / "store")


def described(store: PatchStore, values: Mapping[tuple[str, str], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Descriptors given by (sequence, strip), float (N, D) each, as a function of the store's rows."""

    def describe(rows: np.ndarray) -> np.ndarray:
        found = []
        for row in rows.tolist():
            strip, _, index = store.source[row].decode().rpartition(":")
            name, kind = strip.split("/")
            found.append(values[name, kind.removesuffix(".png")][int(index)])
        return np.array(found, np.float32)

    return describe


def drawn(
    sizes: Mapping[str, int], dim: int = 4, noise: float = 0.7, levels: int = 0
) -> dict[tuple[str, str], np.ndarray]:
    """Descriptors of a strip: those of a spot, with errors that grow from e to t. levels: rounded to so many steps in a
    unit, so that many distances tie."""
    rng = np.random.default_rng(5)
    made = {}
    for name, patches in sizes.items():
        spot = rng.standard_normal((patches, dim))
        for kind in KINDS:
            error = {"r": 0.0, "e": 0.5, "h": 1.0, "t": 1.5}[kind[0]] * noise
            value = spot + error * rng.standard_normal((patches, dim))
            made[name, kind] = (np.round(value * levels) if levels else value).astype(np.float32)
    return made
