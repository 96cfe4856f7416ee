"""ingest with workers, ingest --append and copy, as a user types them."""

import json

import cv2
import numpy as np
import pytest
from command import run

from hardmine.store.patches import PatchStore


def photograph(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.random.default_rng(seed).integers(0, 256, (10, 12, 3), np.uint8))


@pytest.fixture
def source(tmp_path):
    for seed, name in enumerate(["ape/1.png", "ape/2.png", "bee/1.png", "bee/2.png", "bee/3.png"]):
        photograph(tmp_path / "src" / name, seed)
    return tmp_path / "src"


def test_append_adds_what_is_new(tmp_path, source):
    store = tmp_path / "store"
    made = json.loads(run("ingest", "folder", source, store, "--split", "by-item:0.5", "--json"))
    assert made["patches kept"] == 5
    photograph(source / "cow" / "1.png", 9)
    assert "add what is new" in run("ingest", "folder", source, store, "--split", "by-item:0.5", code=1)
    added = json.loads(run("ingest", "folder", source, store, "--append", "--json"))
    assert (added["items there already"], added["patches added"], added["classes added"]) == (5, 1, 1)
    assert "nothing to do" in run("ingest", "folder", source, store, "--append", "--json")
    assert "the store's own choices hold" in run("ingest", "folder", source, store, "--append", "--seed", 3, code=2)


def test_copy_to_a_url_and_read_it_there(tmp_path, source, monkeypatch):
    monkeypatch.setenv("HARDMINE_CACHE", str(tmp_path / "cache"))
    run("ingest", "folder", source, tmp_path / "store")
    url = f"memory://{tmp_path.name}/store"
    copied = json.loads(run("copy", tmp_path / "store", url, "--json"))
    assert copied["store"] == "patch store"
    assert copied["verified"] is True
    assert json.loads(run("verify", url, "--json"))["problems"] == []
    run("copy", url, tmp_path / "back")
    assert PatchStore.open(tmp_path / "back").fingerprint == PatchStore.open(tmp_path / "store").fingerprint


def test_a_scheduler_and_workers_contradict_each_other(tmp_path, source):
    words = ["ingest", "folder", source, tmp_path / "store", "--workers", 2, "--scheduler", "tcp://127.0.0.1:1"]
    assert "either workers" in run(*words, code=2)
    assert not (tmp_path / "store").exists()
