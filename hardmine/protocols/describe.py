"""`describe`: what a trained run is for: keypoints and descriptors of a photograph, or descriptors of a patch store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardmine.errors import InputError
from hardmine.mining.embed import embed_entries, embed_patches
from hardmine.pipeline.frames import REACH, cut, detect
from hardmine.pipeline.images import read_grey
from hardmine.protocols.hpatches.csv_files import write_csv
from hardmine.store.files import replacing, require_folder
from hardmine.store.patches import PatchStore
from hardmine.train.networks import Network
from hardmine.train.ranks import default_device
from hardmine.train.runs import load


def describe_image(
    network: Network, image: np.ndarray, points: int = 2000, device: str | torch.device | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Keypoints float64 (n, 4) (x, y, size, angle in radians) and descriptors float32 (n, dim) of a photograph.

    image: uint8 (H, W), grey. points: at most so many, the strongest whose patch lies inside the photograph.
    """
    frames, _ = detect(image, points, reach=REACH)
    return frames, embed_patches(cut(image, frames), network, device=device)


def describe(
    run: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    points: int = 2000,
    device: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write the descriptors of `source` to `out`, and say what it holds.

    source: a photograph (arrays `keypoints` (n, 4) and `descriptors` (n, dim)), or a patch store (arrays `rows` (n,)
    and `descriptors`). run: see `train.runs.load`. out: an npz file; or, for a store of HPatches, a folder for the
    benchmark's CSV layout (a name without ending). progress: called with (files done, files in all) there. Raises
    MissingError, InputError.
    """
    source, out, where = Path(source), Path(out), default_device(device)
    if out.suffix == ".npz":
        require_folder(out)
    network = load(run)
    store = PatchStore.open(source) if source.is_dir() else None
    if out.suffix != ".npz":
        if store is None or out.suffix or out.is_file() or store.column("kind") is None:
            raise InputError(
                f"{out}: the descriptors are written as .npz; name the file so. For a patch store of HPatches, a name "
                "without ending is a folder for the benchmark's CSV files"
            )
        return _describe_strips(network, store, out, where, progress)
    if store is not None:
        rows = np.flatnonzero(store.used)
        arrays = {"rows": rows, "descriptors": embed_entries(store, rows, None, network, device=where)}
    else:
        keypoints, descriptors = describe_image(network, read_grey(source), points, where)
        arrays = {"keypoints": keypoints, "descriptors": descriptors}
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return {"out": str(out), **{name: list(array.shape) for name, array in arrays.items()}}


def _describe_strips(
    network: Network, store: PatchStore, out: Path, device: torch.device, progress: Callable[[int, int], None] | None
) -> dict[str, Any]:
    files = write_csv(
        out, store, lambda rows: embed_entries(store, rows, None, network, device=device), progress=progress
    )
    return {"out": str(out), "files": files}
