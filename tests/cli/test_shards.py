"""The command line's words about shards and pictures: `ingest --shards --picture`, `verify --workers`."""

import json

import pytest
from picture_world import image_file, register
from typer.testing import CliRunner

import hardmine.cli
from hardmine.errors import InputError, UnknownNameError
from hardmine.store.patches import PatchStore


@pytest.fixture
def source(tmp_path, monkeypatch):
    register(monkeypatch)(files=[image_file(i) for i in range(3)])
    return tmp_path


def run(*words, code=0):
    result = CliRunner().invoke(hardmine.cli.app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_pictures_go_into_the_shards_asked_for(source):
    words = ["--shards", "hdf5", "--picture", "size=square:8", "--picture", "colour=grey", "--json"]
    report = json.loads(run("ingest", "made-up-pictures", source, source / "store", *words).stdout)
    assert report["shrunk"] == report["patches kept"] == 3
    store = PatchStore.open(source / "store")
    assert (store.manifest.shards_kind, store.pixel_shape) == ("hdf5", (8, 8))
    found = json.loads(run("inspect", source / "store", "--json").stdout)
    assert found["patch store"]["pixels"] == "8x8"
    assert found["pictures"]["size"] == "square:8"


def test_images_of_several_sizes_can_be_inspected_and_verified(source):
    run("ingest", "made-up-pictures", source, source / "store", "--picture", "crop=true")
    found = json.loads(run("inspect", source / "store", "--json").stdout)
    assert found["patch store"]["pixels"] == "of several sizes"
    assert found["patch store"]["shards"] == "webdataset"
    assert json.loads(run("verify", source / "store", "--workers", "2", "--json").stdout)["problems"] == []
    tar = source / "store/shards/000000.tar"
    tar.write_bytes(b"x" * tar.stat().st_size)
    assert len(json.loads(run("verify", source / "store", "--json", code=1).stdout)["problems"]) == 4


def test_words_that_mean_nothing(source):
    wrong = run("ingest", "made-up-pictures", source, source / "store", "--picture", "colour", code=1).exception
    assert isinstance(wrong, InputError)
    assert str(wrong).startswith("--picture colour: expected key=value")
    wrong = run("ingest", "made-up-pictures", source, source / "store", "--picture", "color=grey", code=1).exception
    assert isinstance(wrong, UnknownNameError)
    assert "Did you mean 'colour'" in str(wrong)
    assert run("ingest", "made-up-pictures", source, source / "store", "--shards", "zip", code=2)
