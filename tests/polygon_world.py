"""Folders of small colour images for tests of image training, ingested."""

import numpy as np
from PIL import Image, ImageDraw

from hardmine.pipeline.ingest import ingest


def polygon_store(root, classes, each, sides):
    """A patch store of coloured polygons on noise; a class is a polygon. Splits: train and val, by item. sides: (least,
    most + 1) of an image's width and of its height, or the one side of all. Seeded."""
    rng = np.random.default_rng(0)
    for c in range(classes):
        corners, colour = rng.uniform(0.1, 0.9, (5, 2)), tuple(rng.integers(0, 256, 3).tolist())
        (root / "raw" / f"class{c:02d}").mkdir(parents=True)
        for i in range(each):
            size = np.array([sides] * 2 if isinstance(sides, int) else [rng.integers(*sides), rng.integers(*sides)])
            image = Image.fromarray(rng.integers(0, 80, (*size[::-1], 3), dtype=np.uint8))
            moved = (corners + rng.normal(0, 0.03, corners.shape)) * size
            ImageDraw.Draw(image).polygon([tuple(p) for p in moved.tolist()], fill=colour)
            image.save(root / "raw" / f"class{c:02d}" / f"{i}.png")
    ingest("folder", root / "raw", root / "store", split="by-item:0.75")
    return root / "store"
