"""Small patch stores to train on and to test on."""

import pytest
from phototour_world import write_phototour

from hardmine.pipeline.ingest import ingest
from hardmine.store.patches import PatchStore


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """Paths of two patch stores: 'train', split by class, and 'test', whole."""
    root = tmp_path_factory.mktemp("stores")
    for name, seed, split in (("train", 0, "by-class:0.75"), ("test", 1, None)):
        write_phototour(root / f"{name}.raw", seed=seed)
        ingest("phototour", root / f"{name}.raw", root / name, split=split)
    return {"train": root / "train", "test": root / "test"}


@pytest.fixture(scope="session")
def train_store(stores):
    return PatchStore.open(stores["train"])
