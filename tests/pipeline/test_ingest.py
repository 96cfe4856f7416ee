"""Ingest: order, rejects, repeats, kills and full disks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hardmine
from hardmine.errors import HardmineError, InputError, LockedError, MissingError, StoreError, UnknownNameError
from hardmine.pipeline.ingest import ingest, write_shard
from hardmine.pipeline.readers.base import Pair
from hardmine.pipeline.shards import ShardTask, finished_shard
from hardmine.store.files import write_lock
from hardmine.store.hdf5 import write_patches
from hardmine.store.manifest import WrittenFile
from hardmine.store.patches import PatchStore

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(hardmine.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def tree(store: Path) -> dict[str, bytes]:
    """Every file of a store but its lock."""
    paths = [path for path in store.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(store)): path.read_bytes() for path in paths}


def test_same_source_same_bytes(tmp_path: Path, made_up: Callable) -> None:
    made_up(bad={1: "dull"}, pairs={"a": Pair(np.array([0]), np.array([3]), np.array([True]))})
    for name in ("a", "b"):
        report = ingest("made-up", tmp_path, tmp_path / name, shard_rows=2, split="by-class:0.5", seed=3)
        assert report.written
        assert report.path == tmp_path / name
    first = tree(tmp_path / "a")
    assert first == tree(tmp_path / "b")
    assert sorted(first) == sorted(
        ["manifest.json", "rejects.csv", "pairs/a.npy"]
        + [f"columns/{name}.npy" for name in ("label", "raw_label", "source", "used", "split", "image")]
        + [f"shards/{number:06}.h5" for number in range(4)]
    )


def test_rejects_shorten_their_shard_only(tmp_path: Path, made_up: Callable) -> None:
    """Sorted, the items are 2 0 5 | 1 3 6 | 4."""
    reader = made_up(bad={0: "dull", 4: "dark", 2: "dull"})
    report = ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3)
    store = PatchStore.open(tmp_path / "s")
    assert [shard.rows for shard in store.manifest.shards] == [1, 3, 0]
    assert store.source.tolist() == [b"item 5", b"item 1", b"item 3", b"item 6"]
    np.testing.assert_array_equal(store.gather(np.arange(4)), np.stack([reader.pixels(i) for i in (5, 1, 3, 6)]))
    assert store.rejects() == [(b"item 2", "dull"), (b"item 0", "dull"), (b"item 4", "dark")]
    assert report.reasons == {"dull": 2, "dark": 1}
    assert report.counts["items listed"] == 7
    assert report.counts["patches kept"] == 4
    assert report.counts["items rejected"] == 3
    assert report.counts["classes"] == 2
    assert report.counts["classes with one patch"] == 1
    assert report.counts["classes with no patch left"] == 2
    assert store.num_classes == 4
    assert store.label.tolist() == [1, 2, 2, 2]


def test_sources_round_trip_byte_by_byte(tmp_path: Path, made_up: Callable) -> None:
    names = [b"a,b.png", b'it"s.png', "e\u0301glise".encode(), b"\xff\xfe.png", b"two\nlines\r.png", b" space", b"''"]
    made_up(source=np.array(names), bad=dict.fromkeys(range(6), "dull \udcff, or worse"))
    ingest("made-up", tmp_path, tmp_path / "s")
    store = PatchStore.open(tmp_path / "s")
    assert store.source.tolist() == names[6:]
    assert sorted(store.rejects()) == sorted((name, "dull \\udcff, or worse") for name in names[:6])
    assert b'"\xff\xfe.png","dull \\udcff, or worse"\n' in (tmp_path / "s/rejects.csv").read_bytes()


def test_class_size_limits_set_used_and_delete_nothing(tmp_path: Path, made_up: Callable) -> None:
    made_up(raw_label=np.array([5, 1, 1, 1, 1, 9, 9]), bad={1: "dull"})
    report = ingest("made-up", tmp_path, tmp_path / "s", min_per_class=2, max_per_class=2)
    store = PatchStore.open(tmp_path / "s")
    assert store.raw_label.tolist() == [1, 1, 1, 5, 9, 9]
    assert store.used.tolist() == [True, True, False, False, True, True]
    assert store.rows().tolist() == [0, 1, 4, 5]
    assert report.counts["patches set aside by class size"] == 2


def test_split_is_seeded_and_blind_to_rejects(tmp_path: Path, made_up: Callable) -> None:
    def train(name: str, seed: int) -> set[int]:
        ingest("made-up", tmp_path, tmp_path / name, split="by-class:0.5", seed=seed)
        store = PatchStore.open(tmp_path / name)
        return set(store.raw_label[store.rows("train")].tolist())

    made_up(raw_label=np.arange(40))
    whole = train("a", 0)
    assert len(whole) == 20
    assert whole != train("b", 1)
    made_up(raw_label=np.arange(40), bad={3: "dull", 17: "dull"})
    assert train("c", 0) == whole - {3, 17}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"options": {"sigmo": 2}}, UnknownNameError, "options of made-up: 'sigmo'. Did you mean 'sigma'"),
        ({"options": {"sigma": "wide"}}, InputError, "options of made-up: sigma: .*'wide'"),
        ({"split": "by-itm:0.5"}, UnknownNameError, "split rule 'by-itm'. Did you mean 'by-item'"),
        ({"split": "by-class"}, InputError, "by-class:FRACTION"),
        ({"split": "by-class:1.5"}, InputError, "between 0 and 1"),
        ({"split": "by-class:0.01"}, InputError, "of 4 classes leaves one side empty"),
        ({"on_bad": "skp"}, UnknownNameError, "Did you mean 'skip'"),
        ({"min_per_class": 3, "max_per_class": 2}, InputError, "max_per_class 2"),
        ({"shard_rows": 0}, InputError, "shard_rows 0"),
        ({"kind": "made-upp"}, UnknownNameError, "Did you mean 'made-up'"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, made_up: Callable, arguments: dict, error: type[Exception], message: str
) -> None:
    made_up()
    with pytest.raises(error, match=message):
        ingest(**{"kind": "made-up", "src": tmp_path, "store": tmp_path / "s", **arguments})
    assert not (tmp_path / "s").exists()


def test_on_bad_fail_stops_and_skip_goes_on_from_there(tmp_path: Path, made_up: Callable) -> None:
    made_up(bad={4: "dark"})
    with pytest.raises(InputError, match="item 4: dark"):
        ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3, on_bad="fail")
    with pytest.raises(MissingError, match="unfinished ingest"):
        PatchStore.open(tmp_path / "s")
    report = ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3)
    assert report.resumed == 2
    with pytest.raises(InputError, match="1 items were left out"):
        ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3, on_bad="fail")


def test_nothing_left(tmp_path: Path, made_up: Callable) -> None:
    made_up(bad={**dict.fromkeys(range(5), "dull"), 5: "dark", 6: "dark"})
    with pytest.raises(InputError, match=r"no patch left \(0 of 7\).*dull \(5 times\); dark \(2 times\)"):
        ingest("made-up", tmp_path, tmp_path / "s")
    made_up()
    assert ingest("made-up", tmp_path, tmp_path / "s").written  # nothing stands in the way of the mended source


def test_a_repeated_ingest_writes_nothing(tmp_path: Path, made_up: Callable) -> None:
    made_up(bad={4: "dark"})
    first = ingest("made-up", tmp_path, tmp_path / "s")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*.*") if path.name != ".lock"}
    second = ingest("made-up", tmp_path, tmp_path / "s")
    assert (second.written, second.counts, second.reasons) == (False, first.counts, first.reasons)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*.*") if path.name != ".lock"}


def test_another_ingest_is_refused(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    ingest("made-up", tmp_path, tmp_path / "s")
    before = tree(tmp_path / "s")
    with pytest.raises(StoreError, match=r"differs in: options\. Delete"):
        ingest("made-up", tmp_path, tmp_path / "s", options={"sigma": 2.0})
    with pytest.raises(StoreError, match=r"differs in: split, class size limits\."):
        ingest("made-up", tmp_path, tmp_path / "s", split="by-class:0.5", max_per_class=4)
    made_up(raw_label=np.array([b"x"] * 7))
    with pytest.raises(StoreError, match=r"differs in: listed items\."):
        ingest("made-up", tmp_path, tmp_path / "s")
    assert tree(tmp_path / "s") == before


def test_leftovers_of_another_ingest_are_refused(tmp_path: Path, made_up: Callable) -> None:
    made_up(bad={4: "dark"})
    with pytest.raises(InputError):
        ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3, on_bad="fail")
    with pytest.raises(StoreError, match=r"unfinished ingest that differs in: shard rows\. Delete"):
        ingest("made-up", tmp_path, tmp_path / "s", shard_rows=2)


def test_a_foreign_folder_is_refused(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    (tmp_path / "s").mkdir()
    assert ingest("made-up", tmp_path, tmp_path / "s").written
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    with pytest.raises(InputError, match=r"not empty.*thesis\.tex"):
        ingest("made-up", tmp_path, tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        ingest("made-up", tmp_path, tmp_path / "mine/thesis.tex")


def test_two_at_once(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    with write_lock(tmp_path / "s", "the patch store"), pytest.raises(LockedError, match=str(os.getpid())):
        ingest("made-up", tmp_path, tmp_path / "s")


def test_a_damaged_finished_shard_is_written_again(tmp_path: Path, made_up: Callable) -> None:
    reader = made_up()(tmp_path, None)
    task = ShardTask(reader, tmp_path, 0, 0, np.array([4, 2]), (4, 5), "key", "skip")
    assert finished_shard(task) is None
    record = write_shard(task)
    content = task.path.read_bytes()
    assert finished_shard(task) == record
    for damaged in (content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
        task.path.write_bytes(damaged)
        assert finished_shard(task) is None
    task.record_path.write_text("{")
    assert finished_shard(task) is None
    assert write_shard(task) == record
    assert task.path.read_bytes() == content


def test_a_reader_is_held_to_its_contract(tmp_path: Path, made_up: Callable) -> None:
    def failing(**attributes: object) -> pytest.ExceptionInfo[HardmineError]:
        made_up(**attributes)
        with pytest.raises(HardmineError) as caught:
            ingest("made-up", tmp_path, tmp_path / "s")
        return caught

    assert "not unique" in str(failing(source=np.array([b"x"] * 7)).value)
    assert "not int64 or bytes" in str(failing(raw_label=np.zeros(7)).value)
    beyond = Pair(np.array([0]), np.array([7]), np.array([True]))
    assert "do not exist" in str(failing(pairs={"a": beyond}).value)
    assert "float64 (4, 5)" in str(failing(pixels=staticmethod(lambda number: np.zeros((4, 5)))).value)
    assert "read 0 of 7" in str(failing(read=lambda self, numbers: iter(())).value)


def test_progress_reaches_the_end(tmp_path: Path, made_up: Callable) -> None:
    made_up()
    seen: list[tuple[int, int]] = []
    ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3, progress=lambda *at: seen.append(at))
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_one_shard_is_written_while_the_next_is_read_and_no_third(
    tmp_path: Path, made_up: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    read = [threading.Event() for _ in range(4)]

    def write(path: Path, pixels: np.ndarray) -> WrittenFile:
        number = int(path.stem)
        assert number == 3 or read[number + 1].wait(10), "nothing was read while this was written"
        time.sleep(0.02)  # time to read a third, if anyone would
        written = write_patches(path, pixels)
        events.append(f"written {number}")
        return written

    def progress(done: int, total: int) -> None:
        number = (done - 1) // 2
        events.append(f"read {number}")
        read[number].set()

    reader = made_up()
    monkeypatch.setattr("hardmine.pipeline.shards.write_patches", write)
    ingest("made-up", tmp_path, tmp_path / "s", shard_rows=2, progress=progress)
    pairs = [event for number in range(3) for event in (f"read {number + 1}", f"written {number}")]
    assert events == ["read 0", *pairs, "written 3"]
    store = PatchStore.open(tmp_path / "s")
    items = [int(source.split()[1]) for source in store.source]
    np.testing.assert_array_equal(store.gather(np.arange(7)), np.stack([reader.pixels(i) for i in items]))
    assert store.verify() == []


def test_an_interrupt_lets_the_shard_that_is_being_written_end(tmp_path: Path, made_up: Callable) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > 3:
            raise KeyboardInterrupt

    made_up()
    with pytest.raises(KeyboardInterrupt):
        ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3, progress=interrupt)
    assert sorted(path.name for path in (tmp_path / "s/shards").iterdir()) == ["000000.h5", "000000.json"]
    assert ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3).resumed == 1


def test_killed_at_any_moment_nothing_is_lost(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 200, pairs="0 0 0 1 0 0\n4 1 0 9 3 0\n")
    ingest("phototour", tmp_path / "src", tmp_path / "undisturbed", shard_rows=4, split="by-class:0.5")
    program = (
        "import sys, time; from hardmine.pipeline.ingest import ingest\n"
        "ingest('phototour', sys.argv[1], sys.argv[2], shard_rows=4, split='by-class:0.5',"
        " progress=lambda done, total: time.sleep(0.01))"
    )
    store = tmp_path / "killed"
    moment = random.Random(0)
    for least in (0, 20):
        wanted = least + moment.randrange(3, 15)  # of 50 shards
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "src"), str(store)], env=ENVIRONMENT
        ) as run:
            while run.poll() is None and len(list(store.glob("shards/*.json"))) < wanted:
                time.sleep(0.002)
            time.sleep(moment.random() * 0.02)
            run.kill()
            assert run.wait() == -signal.SIGKILL
        assert not (store / "manifest.json").exists()
    report = ingest("phototour", tmp_path / "src", store, shard_rows=4, split="by-class:0.5")
    assert 23 <= report.resumed < 50
    assert tree(store) == tree(tmp_path / "undisturbed")


def test_killed_while_committing(tmp_path: Path, made_up: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two moments: just before the manifest, and just after it."""
    made_up(bad={4: "dark"})
    ingest("made-up", tmp_path, tmp_path / "undisturbed", shard_rows=3)
    for place in ("hardmine.pipeline.commit.Manifest", "hardmine.pipeline.ingest.discard_leftovers"):
        with monkeypatch.context() as patch:
            patch.setattr(place, _interrupt)
            with pytest.raises(KeyboardInterrupt):
                ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3)
    assert (tmp_path / "s/unfinished.json").exists()
    ingest("made-up", tmp_path, tmp_path / "s", shard_rows=3)
    assert tree(tmp_path / "s") == tree(tmp_path / "undisturbed")


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_full_disk_names_the_file_and_the_run_can_go_on(tmp_path: Path, phototour: Callable) -> None:
    phototour(tmp_path / "src", 300)
    program = (
        "import sys, resource, time; from pathlib import Path\n"
        "from hardmine.pipeline.ingest import ingest; from hardmine.errors import DiskError\n"
        "def fill(done, total):\n"
        "    while done > 100 and not Path(sys.argv[2], 'shards/000000.json').exists(): time.sleep(0.001)\n"
        "    if done > 100: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: ingest('phototour', sys.argv[1], sys.argv[2], shard_rows=100, progress=fill)\n"
        "except DiskError as error: print(error)"
    )
    store = tmp_path / "s"
    command = [sys.executable, "-c", program, str(tmp_path / "src"), str(store)]
    output = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert f"cannot write {store / 'shards/000001.h5'}: File too large" in output
    assert sorted(path.name for path in (store / "shards").iterdir()) == ["000000.h5", "000000.json"]
    assert ingest("phototour", tmp_path / "src", store, shard_rows=100).resumed == 1
    assert PatchStore.open(store).verify() == []
