"""Tar shards: what is written, what reads it, and what happens when it is damaged."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hardmine.errors import InputError, StoreError
from hardmine.pipeline.pictures import encode
from hardmine.store import webdataset as tars
from hardmine.store.decode import ImageError
from hardmine.store.files import sha256_file
from hardmine.store.webdataset import TarShards, index_path, read_index, stream_tar, write_tar

SIZES = [(4, 6), (1, 1), (9, 3), (4, 4)]
IMAGES = [np.random.default_rng(i).integers(0, 256, (*size, 3), dtype=np.uint8) for i, size in enumerate(SIZES)]
FILES = [encode(image, "png") for image in IMAGES]


def written(folder: Path, shard: int = 3) -> Path:
    tar = folder / f"{shard:06}.tar"
    write_tar(tar, shard, iter(FILES))
    return tar


def test_the_files_are_as_described(tmp_path: Path) -> None:
    tar = tmp_path / "000003.tar"
    found = write_tar(tar, 3, iter(FILES))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000003.idx.npy", "000003.tar"]
    assert (found.tar.bytes, found.tar.sha256) == (tar.stat().st_size, sha256_file(tar))
    assert (found.index.bytes, found.index.sha256) == (index_path(tar).stat().st_size, sha256_file(index_path(tar)))
    assert found.rows == 4
    assert found.content == sum(len(content) for content, _ in FILES)
    with tarfile.open(tar) as opened:
        members = opened.getmembers()
        assert [m.name for m in members] == [f"000003{i:06}.png" for i in range(4)]
        assert [opened.extractfile(m).read() for m in members] == [content for content, _ in FILES]  # type: ignore[union-attr]
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}
    content = tar.read_bytes()
    for (offset, length), (file, _) in zip(read_index(tar, 4).tolist(), FILES):
        assert content[offset : offset + length] == file


def test_tar_lists_it(tmp_path: Path) -> None:
    listed = subprocess.run(["tar", "tf", written(tmp_path)], check=True, capture_output=True, text=True)
    assert listed.stdout.split() == [f"000003{i:06}.png" for i in range(4)]
    assert not listed.stderr


def test_the_same_members_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, second = written(tmp_path), written(tmp_path / "again")
    assert first.read_bytes() == second.read_bytes()
    assert index_path(first).read_bytes() == index_path(second).read_bytes()


def test_an_empty_shard_is_a_tar(tmp_path: Path) -> None:
    tar = tmp_path / "000000.tar"
    assert write_tar(tar, 0, []).rows == 0
    with tarfile.open(tar) as opened:
        assert opened.getnames() == []
    assert list(stream_tar(tar, 0)) == []
    assert read_index(tar, 0).shape == (0, 2)


def test_gather_finds_items_in_any_order_from_several_threads(tmp_path: Path) -> None:
    shards = TarShards([written(tmp_path, 0), written(tmp_path, 1)], [4, 4], "rgb", None)
    rng = np.random.default_rng(0)
    asked = [(rng.integers(0, 2, 20), rng.integers(0, 4, 20)) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for (_, place), found in zip(asked, pool.map(lambda a: shards.gather(*a), asked)):
            assert all(np.array_equal(f, IMAGES[p]) for f, p in zip(found, place))
    assert shards.gather(np.zeros(0, np.int64), np.zeros(0, np.int64)) == []


def test_stream_reads_through_the_library(tmp_path: Path) -> None:
    assert [content for _, content in stream_tar(written(tmp_path), 4)] == [content for content, _ in FILES]


@pytest.mark.parametrize("keep", [0, 700, 1536, 3000])
def test_a_cut_tar_is_named(tmp_path: Path, keep: int) -> None:
    tar = written(tmp_path)
    tar.write_bytes(tar.read_bytes()[:keep])
    with pytest.raises(StoreError, match=r"000003.tar .*of 4 members"):
        list(stream_tar(tar, 4))
    shards = TarShards([tar], [4], "rgb", None)
    with pytest.raises(StoreError, match=r"000003.tar ends before the end of member \d"):
        shards.gather(np.zeros(4, np.int64), np.arange(4))
    assert any("000003.tar" in line for line in shards.problems(0))


def test_a_foreign_tar_is_named(tmp_path: Path) -> None:
    tar = written(tmp_path)
    with pytest.raises(StoreError, match="ends after 4 of 5 members"):
        list(stream_tar(tar, 5))
    with pytest.raises(StoreError, match="not this store's"):
        read_index(tar, 5)
    index_path(tar).unlink()
    with pytest.raises(StoreError, match="cannot read the index"):
        TarShards([tar], [4], "rgb", None).gather(np.zeros(1, np.int64), np.zeros(1, np.int64))


def test_a_damaged_item_and_a_shifted_index_are_found(tmp_path: Path) -> None:
    tar = written(tmp_path, 0)
    content = bytearray(tar.read_bytes())
    offset, length = read_index(tar, 4)[2].tolist()
    content[offset : offset + length] = bytes(length)
    tar.write_bytes(content)
    shards = TarShards([tar], [4], "rgb", None)
    (problem,) = shards.problems(0)
    assert "member 000000000002" in problem
    with pytest.raises(ImageError, match="member 000000000002"):
        shards.gather(np.zeros(1, np.int64), np.array([2]))
    index = read_index(tar, 4)[[1, 0, 2, 3]]
    np.save(index_path(tar), index)
    assert len(TarShards([tar], [4], "rgb", None).problems(0)) == 3


def test_a_shape_that_is_not_the_manifests_is_an_error(tmp_path: Path) -> None:
    shards = TarShards([written(tmp_path)], [4], "rgb", (4, 6, 3))
    np.testing.assert_array_equal(shards.gather(np.zeros(2, np.int64), np.zeros(2, np.int64)), IMAGES[:1] * 2)
    with pytest.raises(StoreError, match=r"is \(1, 1, 3\), the manifest says \(4, 6, 3\)"):
        shards.gather(np.zeros(1, np.int64), np.ones(1, np.int64))


def test_too_many_members_or_shards_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "MOST_MEMBERS", 3)
    with pytest.raises(InputError, match="at most 3 members"):
        write_tar(tmp_path / "000000.tar", 0, iter(FILES))
    with pytest.raises(InputError, match="at most 3 shards"):
        write_tar(tmp_path / "000003.tar", 3, iter(FILES))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[tuple[bytes, str]]:
        yield FILES[0]
        raise InputError("bad item")

    with pytest.raises(InputError, match="bad item"):
        write_tar(tmp_path / "000000.tar", 0, failing())
    assert list(tmp_path.iterdir()) == []
