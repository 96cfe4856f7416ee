"""Ingest against what one would use instead, and its memory: python benchmarks/ingest.py [--items N] [--workers N]

With --items, that many made-up patches and a tenth as many made-up images are ingested, and a quarter of each, every
time in a fresh process whose peak memory is printed: it must not grow by more than the columns.
"""

from __future__ import annotations

import argparse
import io
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from measure import Row, fastest, phototour_folder, show

from hardmine.pipeline.readers import base

SIDE, VARIETY = 64, 64  # of a patch; different contents that made-up items have


def ingest_phototour(work: Path) -> list[Row]:
    import torch
    from PIL import Image

    from hardmine.pipeline.ingest import ingest
    from hardmine.pipeline.readers.phototour import PhotoTour

    source = work / "ingest.raw"
    phototour_folder(source, 400)
    count = 400 * 256

    def read() -> None:
        reader = PhotoTour(source, PhotoTour.Options())
        reader.candidates()
        for _ in reader.read(np.arange(count)):
            pass

    def torchvision_crops() -> None:
        patches = []
        for file in sorted(source.glob("*.bmp")):
            image = Image.open(file)
            for y in range(0, 1024, 64):
                for x in range(0, 1024, 64):
                    patches.append(np.asarray(image.crop((x, y, x + 64, y + 64)), np.uint8))
        torch.from_numpy(np.array(patches))

    def whole() -> None:
        ingest("phototour", source, work / "ingested")

    def copy() -> None:
        shutil.copytree(source, work / "copied")
        subprocess.run(["sync", "-f", str(work / "copied")], check=True)

    def clear() -> None:  # not timed: a disk that discards freed blocks takes longer to remove a folder than to copy it
        for name in ("ingested", "copied"):
            shutil.rmtree(work / name, ignore_errors=True)
        subprocess.run(["sync", "-f", str(work)], check=True)

    a, b = fastest(read, torchvision_crops, runs=5)
    c, d = fastest(whole, copy, runs=7, before=clear)
    return [
        (f"bmp to {count:,} patches", f"{a:.3f} s; torchvision's crop loop {b:.3f} s", b / a, 4),
        ("ingest with checksums", f"{c:.3f} s; a copy of the same bytes, flushed {d:.3f} s", d / c, 0.7),
    ]


class GeneratedOptions(base.Options):
    """items: how many. images: encoded images instead of patches."""

    items: int
    images: bool = False


class Generated:
    """Made-up items, ten to a class."""

    Options: ClassVar[type[base.Options]] = GeneratedOptions

    def __init__(self, src: Path, options: GeneratedOptions):
        self.src, self.options = src, options
        pixels = np.random.default_rng(0).integers(0, 256, (VARIETY, SIDE, SIDE), dtype=np.uint8)
        self._items: list[Any] = list(pixels)
        if options.images:
            from PIL import Image

            self._items = []
            for each in pixels:
                buffer = io.BytesIO()
                Image.fromarray(each).save(buffer, "JPEG")
                self._items.append(base.Picture(buffer.getvalue(), b"made up"))

    def candidates(self) -> base.Candidates:
        numbers = np.arange(self.options.items)
        shape = None if self.options.images else (SIDE, SIDE)
        return base.Candidates(numbers // 10, numbers.astype("S8"), shape, {"image": numbers // 100})

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, Any]]:
        for number in np.asarray(numbers).tolist():
            yield number, self._items[number % VARIETY]


def measured(items: int, images: bool, workers: int) -> None:
    """Ingest made-up items in this process; print seconds and peak memory of it and of its largest child, MiB."""
    from hardmine.pipeline.ingest import ingest

    base.readers.register("generated")(Generated)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ingest("generated", folder, Path(folder) / "store", options={"items": items, "images": images}, workers=workers)
        seconds = time.perf_counter() - began
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"{seconds:.3f} {peaks[0]:.0f} {peaks[1]:.0f}")


def memory(items: int, workers: int) -> None:
    """Print a line per size and kind."""
    for images in (False, True):
        for count in (items // 4, items):
            count = count // 10 if images else count
            command = [sys.executable, __file__, "--measure", "--items", str(count), "--workers", str(workers)]
            done = subprocess.run(
                command + ["--images"] * images, capture_output=True, text=True, check=True
            ).stdout.split()
            what = "images" if images else "patches"
            print(
                f"{count:>9,} {what:7}, {workers} workers: {count / float(done[0]):9,.0f}/s, peak {done[1]} MiB"
                + (f", largest worker {done[2]} MiB" if workers else ""),
                flush=True,
            )


def main() -> None:
    """Parse, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, help="measure memory with this many made-up patches")
    parser.add_argument("--workers", type=int, default=0, help="worker processes for --items")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--images", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measured(given.items, given.images, given.workers)
    elif given.items:
        memory(given.items, given.workers)
    else:
        show([ingest_phototour])


if __name__ == "__main__":
    main()
