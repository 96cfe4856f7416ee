"""Atomic writes, full disks and the write lock."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hardmine
from hardmine.errors import DiskError, HardmineError, LockedError
from hardmine.store.files import disk_errors, replacing, sha256_file, write_atomic, write_lock

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(hardmine.__file__).parents[1])}


def test_write_atomic_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]
    assert sha256_file(path) == "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437"


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def half() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_names_the_file(code: int) -> None:
    with pytest.raises(DiskError, match=r"cannot write /x/y\.h5: .*Make room") as caught, disk_errors("/x/y.h5"):
        raise OSError(code, os.strerror(code))
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, HardmineError)


def test_other_errors_pass_through() -> None:
    with pytest.raises(PermissionError), disk_errors("x"):
        raise PermissionError(errno.EACCES, "no")


def test_the_lock_names_its_owner_and_dies_with_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from hardmine.store.files import write_lock\n"
        "with write_lock(Path(sys.argv[1]), 'the store'): print('locked', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "locked\n"
        with (
            pytest.raises(LockedError, match=rf"the store .* process {owner.pid} on \S+ since 20"),
            write_lock(tmp_path, "the store"),
        ):
            pass
        owner.kill()
        owner.wait()
    with (
        write_lock(tmp_path, "the store"),
        pytest.raises(LockedError, match=str(os.getpid())),
        write_lock(tmp_path, "the store"),
    ):
        pass
    with write_lock(tmp_path / "new" / "folder", "the store"):
        pass
