"""Tiny stores of patches and of images, and a set over the former."""

from functools import partial

import cv2
import numpy as np
import pytest
from PIL import Image

from hardmine.pipeline.ingest import ingest
from hardmine.reproduce import reproduce

CLASSES, PER_CLASS, PAIRS = 16, 3, 40

SET = """
title = "A tiny table"
source = "the tests"

[measures.fpr95]
protocol = "phototour"
metric = "fpr95"

[[columns]]
train = "a"
test = "b"

[[columns]]
train = "b"
test = "a"

[[rows]]
name = "hardnet"
title = "HardNet"
recipe = "hardnet"
published = [2.0, 4.0]

[[rows]]
name = "adasample"
title = "AdaSample"
recipe = "adasample"
baseline = "hardnet"
small = { "train.mine_every" = 3 }
published = [1.5, nan]

[[rows]]
name = "sift"
title = "SIFT"
contender = "sift"
baseline = "hardnet"

[scales.paper]
about = "as published"
seeds = 1
stores = { a = { store = "one" }, b = { store = "two" } }
set = { "train.steps" = 1000000 }

[scales.small]
about = "tiny"
seeds = 2
stores = { a = { store = "one" }, b = { store = "two" } }

[scales.small.set]
network = { name = "tfeat", unit_norm = true }
"train.pairs" = 6
"train.steps" = 6
"train.lag" = 2
"train.checkpoint_every" = 2
"train.log_every" = 1
"optimizer.lr" = 0.1
"""


def write_phototour(folder, seed):
    """Noisy, shifted crops of one smooth texture a class."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    mosaic, info = np.zeros((16, 16, 64, 64), np.uint8), []
    for c in range(CLASSES):
        texture = cv2.GaussianBlur(rng.normal(size=(90, 90)), (0, 0), 4)
        texture = 128 + 60 * texture / texture.std()
        for _ in range(PER_CLASS):
            x, y = rng.integers(5, 20, 2)
            crop = texture[y : y + 64, x : x + 64] + rng.normal(0, 8, (64, 64))
            mosaic[divmod(len(info), 16)] = np.clip(crop, 0, 255).astype(np.uint8)
            info.append(f"{c} 0\n")
    cv2.imwrite(str(folder / "patches0000.bmp"), mosaic.swapaxes(1, 2).reshape(1024, 1024))
    (folder / "info.txt").write_text("".join(info))
    rows = []
    for match in (True, False):
        for _ in range(PAIRS):
            one, other = rng.choice(CLASSES, 2, replace=False)
            i, j = rng.choice(PER_CLASS, 2, replace=False)
            other = one if match else other
            rows.append(f"{one * PER_CLASS + i} {one} 0 {other * PER_CLASS + j} {other} 0\n")
    (folder / f"m50_{PAIRS}_{PAIRS}_0.txt").write_text("".join(rows))


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """A folder with one.store and two.store."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("one", "two")):
        write_phototour(folder / f"{name}.raw", seed)
        ingest("phototour", folder / f"{name}.raw", folder / f"{name}.store")
    return folder


@pytest.fixture
def written(tmp_path):
    """written(text, old, new, ...) writes a set, with texts replaced, and returns its path."""

    def write(text, *changes):
        for old, new in zip(changes[::2], changes[1::2]):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "tiny.toml").write_text(text)
        return str(tmp_path / "tiny.toml")

    return write


@pytest.fixture
def tiny(written):
    """tiny(old, new, ...): the set of this file, see `written`."""
    return partial(written, SET)


@pytest.fixture(scope="session")
def whole(stores, tmp_path_factory):
    """The tiny set, run undisturbed: (set file, OUT, what came back, the lines it said)."""
    root = tmp_path_factory.mktemp("whole")
    (root / "tiny.toml").write_text(SET)
    said = []
    found = reproduce(str(root / "tiny.toml"), stores, root / "out", device="cpu", say=said.append)
    return root / "tiny.toml", root / "out", found, said


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder with pictures.store: eight classes of six noisy images, four of each class to train on."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for c in range(8):
        (root / "raw" / f"class{c}").mkdir(parents=True)
        own = rng.integers(0, 200, (12, 12))
        for i in range(6):
            pixels = np.clip(own + rng.integers(-30, 30, (12, 12)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / "raw" / f"class{c}" / f"{i}.png")
    ingest("folder", root / "raw", root / "pictures.store", split="by-item:0.67", pictures={"colour": "grey"})
    return root
