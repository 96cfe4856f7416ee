"""The demo's photographs: those that the wheel of scikit-image carries, so that nothing is downloaded.

Three disjoint sets. `TRAINING` is trained on. `HELD_OUT` is what the table is measured on: never trained on, and never
looked at to choose a setting. `VALIDATION` was used for that while the demo was written; the demo does not touch it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from hardmine.errors import MissingError
from hardmine.store.files import write_atomic

TRAINING = (
    "astronaut.png",
    "brick.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "page.png",
    "retina.jpg",
    "text.png",
)
HELD_OUT = ("camera.png", "coffee.png", "rocket.jpg")
VALIDATION = ("chelsea.png", "coins.png")
LEFT, RIGHT, DISPARITY = "motorcycle_left.png", "motorcycle_right.png", "motorcycle_disp.npz"
STEREO = (LEFT, RIGHT, DISPARITY)  # the Middlebury pair "Motorcycle" (2014); never trained on either


def folder() -> Path:
    """Where the installed scikit-image has its photographs. Raises MissingError without scikit-image."""
    found = importlib.util.find_spec("skimage")
    if found is None or not found.submodule_search_locations:
        raise MissingError(
            "the demo works on photographs that come with scikit-image, which is not installed: "
            "pip install 'hardmine[demo]'"
        )
    return Path(found.submodule_search_locations[0]) / "data"


def copy(names: Iterable[str], target: Path) -> Path:
    """Copy photographs to the folder `target`, leaving those that are there. Returns `target`.

    Copies, and not links, so that stores made from them stay valid when scikit-image is updated. Raises MissingError
    where a photograph is not in the wheel, DiskError."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (target / name).is_file():
            continue
        source = folder() / name
        if not source.is_file():
            raise MissingError(
                f"scikit-image's photograph {source} is missing; a complete one is installed by: "
                "pip install --force-reinstall 'scikit-image>=0.22' (or pip install 'hardmine[demo]')"
            )
        write_atomic(target / name, source.read_bytes())
    return target
