"""Public reports about HDF5 files, by their number in our log."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hardmine.errors import StoreError
from hardmine.pipeline.ingest import ingest
from hardmine.store.patches import PatchStore


def _first_and_last(store: PatchStore) -> np.ndarray:
    return store.gather(np.array([0, len(store) - 1]))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_d51_a_store_in_use_goes_to_workers(tmp_path: Path, phototour: Callable, method: str) -> None:
    patches = phototour(tmp_path / "src", 6)
    ingest("phototour", tmp_path / "src", tmp_path / "store", shard_rows=4)
    store = PatchStore.open(tmp_path / "store")
    store.gather(np.arange(6))
    with multiprocessing.get_context(method).Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(_first_and_last, (store,)), patches[[0, 5]])


def test_d53_a_cut_shard_is_never_trusted(tmp_path: Path, made_up: Callable) -> None:
    """Killed runs are in tests/pipeline/test_ingest.py; here the file system lost the end of a finished shard."""
    made_up(bad={4: "dark"})
    ingest("made-up", tmp_path, tmp_path / "whole", shard_rows=3)
    with pytest.raises(ValueError, match="dark"):
        ingest("made-up", tmp_path, tmp_path / "store", shard_rows=3, on_bad="fail")
    shard = tmp_path / "store/shards/000000.h5"
    shard.write_bytes(shard.read_bytes()[:-7])
    assert ingest("made-up", tmp_path, tmp_path / "store", shard_rows=3).resumed == 1
    assert shard.read_bytes() == (tmp_path / "whole/shards/000000.h5").read_bytes()


def test_d54_a_file_system_without_locks(tmp_path: Path, made_up: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up()
    ingest("made-up", tmp_path, tmp_path / "store")
    store = PatchStore.open(tmp_path / "store")

    def refuse(*_: Any, **__: Any) -> None:
        text = (
            "Unable to synchronously open file (unable to lock file, errno = 37, error message = 'No locks available')"
        )
        raise OSError(37, text)

    with monkeypatch.context() as patch:
        patch.setattr(h5py, "File", refuse)
        with pytest.raises(StoreError, match="HDF5_USE_FILE_LOCKING=FALSE"):
            store.gather(np.arange(2))
    assert len(store.gather(np.arange(2))) == 2


def test_d56_other_options_are_not_taken_for_the_same_store(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 6)
    ingest("phototour", tmp_path / "src", tmp_path / "store")
    with (tmp_path / "src/info.txt").open("a") as file:
        file.write("9 0\n")
    (tmp_path / "src/interest.txt").unlink()
    with pytest.raises(StoreError, match="differs in: source files, listed items"):
        ingest("phototour", tmp_path / "src", tmp_path / "store")
