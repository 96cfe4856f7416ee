"""Descriptors to and from the benchmark's folder of CSV files."""

from __future__ import annotations

import numpy as np
import pytest
from hpatches_world import KINDS, described, drawn, stored

from hardmine.errors import InputError, MissingError
from hardmine.protocols.base import protocol
from hardmine.protocols.hpatches.csv_files import csv_descriptors, write_csv

SIZES = {"i_one": 6, "v_two": 4}


@pytest.fixture
def store(tmp_path):
    return stored(tmp_path, SIZES)


def test_there_and_back_to_the_bit(store, tmp_path):
    values = drawn(SIZES, dim=7)
    describe = described(store, values)
    seen = []
    assert write_csv(tmp_path / "out", store, describe, progress=lambda *at: seen.append(at)) == 32
    assert seen[-1] == (32, 32)
    assert sorted(p.name for p in (tmp_path / "out/v_two").iterdir()) == sorted(f"{kind}.csv" for kind in KINDS)
    lines = (tmp_path / "out/v_two/h3.csv").read_text().splitlines()
    assert [np.float32(word) for word in lines[2].split(",")] == values["v_two", "h3"][2].tolist()
    back = csv_descriptors(tmp_path / "out", store)
    rows = np.random.default_rng(0).permutation(len(store))
    np.testing.assert_array_equal(back(rows), describe(rows))
    first, again = (protocol("hpatches-matching", {}).evaluate(store, d, None).details for d in (describe, back))
    assert first == again
    write_csv(tmp_path / "semicolons", store, describe, delimiter=";")
    np.testing.assert_array_equal(csv_descriptors(tmp_path / "semicolons", store, ";")(rows), describe(rows))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace(text.split(",")[0], "nan", 1), r"e2\.csv, line 1: not finite; 1 of 6"),
        (lambda text: text + text.splitlines()[0] + "\n", r"e2\.csv: 7 lines for the 6 patches"),
        (lambda text: text.replace(",", ";"), r"e2\.csv, line 1: not numbers with ',' between them"),
        (
            lambda text: text.replace("\n", ",1,1\n", 1),
            r"e2\.csv, line 2: 4 numbers, the lines before have 6",
        ),
        (lambda text: text.replace("\n", "\nx", 1), r"e2\.csv, line 2: not numbers"),
        (
            lambda text: "".join(line.rpartition(",")[0] + "\n" for line in text.splitlines()),
            r"descriptors of 3 and of 4 numbers",
        ),
        (None, r"e2\.csv is missing"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(store, tmp_path, spoil, message):
    write_csv(tmp_path / "out", store, described(store, drawn(SIZES)))
    file = tmp_path / "out/i_one/e2.csv"
    text = file.read_text()
    file.unlink()
    if spoil is not None:
        file.write_text(spoil(text))
    with pytest.raises((InputError, MissingError), match=message):
        csv_descriptors(tmp_path / "out", store)(np.arange(len(store)))


def test_a_folder_that_is_not_there(store, tmp_path):
    with pytest.raises(MissingError, match="expected descriptors as FOLDER/v_wall"):
        csv_descriptors(tmp_path / "nowhere", store)


def test_describe_writes_the_folder_for_a_store_of_hpatches(store, tmp_path, monkeypatch):
    import hardmine.protocols.describe as module
    from hardmine.train.networks import build

    network = build("tfeat").eval()
    monkeypatch.setattr(module, "load", lambda run: network)
    found = module.describe("run", store.path, tmp_path / "out")
    assert found == {"out": str(tmp_path / "out"), "files": 32}
    rows = np.arange(0, len(store), 7)
    expected = module.embed_entries(store, rows, None, network)
    np.testing.assert_allclose(csv_descriptors(tmp_path / "out", store)(rows), expected, atol=1e-6)
    for out in (tmp_path / "out.txt", store.path / "manifest.json"):
        with pytest.raises(InputError, match="a name without ending"):
            module.describe("run", store.path, out)
    with pytest.raises(MissingError, match=r"there is no folder .*nowhere"):
        module.describe("run", store.path, tmp_path / "nowhere" / "out.npz")
    with pytest.raises(InputError, match=r"written as \.npz"):
        module.describe("run", tmp_path / "photo.png", tmp_path / "folder")
