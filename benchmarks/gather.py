"""Pixels from a store, at random and as a stream, against what one would use instead: python benchmarks/gather.py"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from measure import Row, fastest, phototour_folder, show


def gather(work: Path) -> list[Row]:
    import h5py

    from hardmine.pipeline.ingest import ingest
    from hardmine.store.patches import PatchStore

    phototour_folder(work / "gather.raw", 1563)
    ingest("phototour", work / "gather.raw", work / "gather", shard_rows=65536)
    store = PatchStore.open(work / "gather")
    memory = torch.from_numpy(store.gather(np.arange(len(store))))
    rows = np.random.default_rng(1).integers(0, len(store), 2048)
    index, ordered = torch.from_numpy(rows), np.unique(rows)
    files = [h5py.File(p)["patches"] for p in sorted((work / "gather" / "shards").glob("*.h5"))]
    offsets = np.cumsum([0, *(len(f) for f in files)])

    def by_h5py() -> None:
        for file, low, high in zip(files, offsets, offsets[1:], strict=False):
            file[ordered[(ordered >= low) & (ordered < high)] - low]

    ours, select, plain = fastest(lambda: store.gather(rows), lambda: torch.index_select(memory, 0, index), by_h5py)
    what = f"gather 2048 of {len(store):,} patches, {len(files)} shards"
    return [
        (what, f"{1e3 * ours:.2f} ms; torch index_select in memory {1e3 * select:.2f} ms", select / ours, 0.4),
        (what, f"h5py fancy indexing {1e3 * plain:.1f} ms", plain / ours, 10),
    ]


def stream(work: Path) -> list[Row]:
    """A pass over tars of image files, through the store and through webdataset's own pipeline, same decoder."""
    import webdataset

    from hardmine.pipeline.ingest import ingest
    from hardmine.store.decode import decode
    from hardmine.store.patches import PatchStore

    phototour_folder(work / "stream.raw", 24)
    ingest("phototour", work / "stream.raw", work / "stream", shards="webdataset", shard_rows=1024)
    store = PatchStore.open(work / "stream")
    tars = [str(work / "stream" / shard.file) for shard in store.manifest.shards]

    def ours() -> None:
        assert sum(1 for _ in store.webdataset()) == len(store)

    def theirs() -> None:
        samples = webdataset.WebDataset(tars, shardshuffle=False).to_tuple("png")
        assert sum(1 for (content,) in samples if decode(content, "grey", "").shape == (64, 64)) == len(store)

    a, b = fastest(ours, theirs, runs=3)
    how = f"{len(store) / a:,.0f} items/s; webdataset's pipeline on the same tars {len(store) / b:,.0f} items/s"
    return [("streaming webdataset shards", how, b / a, 0.9)]


if __name__ == "__main__":
    show([gather, stream])
