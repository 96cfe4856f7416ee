"""`hardmine mine` as a user gets it wrong: one message for each mistake, and no option that does nothing."""

import json
from dataclasses import replace

import pytest
import torch
from command import run
from mining_world import Tiny, make_store

from hardmine.errors import InputError
from hardmine.mining import mine as mine_module
from hardmine.protocols import mine_command
from hardmine.protocols.describe import describe
from hardmine.protocols.evaluate import evaluate
from hardmine.train.ranks import default_device


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("command") / "store ü", (3, 1, 4, 2, 2))


@pytest.fixture(scope="module")
def mined(store, tmp_path_factory):
    path = tmp_path_factory.mktemp("command") / "mined ü"
    run("mine", store.path, path, "--network", "l2net", "--device", "cpu", "--json")
    return path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--repair", "1", "--derive", "knn"], "--repair makes files again as they were"),
        (["--repair", "1", "--neighbours", "3"], "--repair makes files again as they were"),
        (["--repair", "1", "--replace"], "--repair makes files again as they were"),
        (
            ["--round", "1", "--derive", "pairs", "--neighbours", "99"],
            "--neighbours is for --derive centroids or index",
        ),
        (["--round", "1", "--derive", "pairs,knn", "--index", "HNSW8"], "--index is for --derive index"),
        (["--round", "1", "--derive", "pairs", "--knn-index", "HNSW8"], "--knn-index is for --derive knn"),
        (["--round", "1", "--derive", "pairs,index", "--replace"], "--replace is for --derive knn"),
        (["--round", "1", "--seed", "5"], "either --checkpoint RUN or --network NAME"),
        (["--checkpoint", "x", "--seed", "5"], "--seed and --set go with --network"),
        (["--network", "l2net", "--device", "foo"], "no device 'foo': give cpu, cuda"),
        (["--round", "1", "--device", "foo"], "no device 'foo'"),
        (["--repair", "1", "--device", "foo"], "no device 'foo'"),
    ],
)
def test_options_that_contradict_or_do_nothing_are_refused(store, mined, words, message):
    before = (mined / "log.jsonl").read_bytes()
    assert message in run("mine", store.path, mined, *words, code=2)
    assert (mined / "log.jsonl").read_bytes() == before


def test_inspect_is_readable_on_a_page_of_80_columns(mined):
    """Cells that do not fit a table are cut off, and what is cut off cannot be read anywhere else."""
    shown = run("inspect", mined)
    for text in ("l2net", "patch store", "damaged files", "centroids, index, knn, pairs", "index (recall): 1", "age"):
        assert text in shown, text
    facts = json.loads(run("inspect", mined, "--json"))["rounds"][0]
    assert (facts["age"], facts["still hard"], facts["stale"]) == (None, None, None)


def test_names_of_derivations_may_have_spaces(store, mined):
    found = json.loads(run("mine", store.path, mined, "--round", "1", "--derive", "pairs, knn", "--json"))
    assert found["messages"] == ["round 1 has all of it: nothing to derive"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_said(store, tmp_path):
    words = ["mine", store.path, tmp_path / "m", "--network", "l2net", "--device", "cuda"]
    assert "finds no CUDA device on this machine" in run(*words, code=2)
    assert not (tmp_path / "m").exists()


def test_without_a_device_it_is_cuda_where_it_is_there(store, mined, tmp_path, monkeypatch):
    """The network comes from a file on the CPU, and that is no wish to compute there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_device() == torch.device("cuda")
    seen = []

    def stop(*args, device, **kwargs):
        seen.append(str(device))
        raise InputError("stopped")

    monkeypatch.setattr(mine_command, "mine", stop)
    monkeypatch.setattr(mine_command, "rederive", stop)
    monkeypatch.setattr("hardmine.protocols.evaluate.mine", stop)
    for words in (["--network", "l2net"], ["--round", "1"], ["--network", "l2net", "--device", "cpu"]):
        assert run("mine", store.path, mined, *words, code=2) == "stopped"
    with pytest.raises(InputError, match="stopped"):
        evaluate("retrieval", store.path, mined, network=object(), name="any")
    assert seen == ["cuda", "cuda", "cpu", "cuda"]

    def embedding(*args, device):
        raise InputError(f"on {device}")

    monkeypatch.setattr("hardmine.protocols.describe.load", lambda run: object())
    monkeypatch.setattr("hardmine.protocols.describe.embed_entries", embedding)
    with pytest.raises(InputError, match="on cuda"):
        describe(tmp_path, store.path, tmp_path / "out.npz")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_what_workers_embed_on_gpus_is_derived_where_there_is_none(store, tmp_path, monkeypatch):
    original = mine_module.run_pass

    def elsewhere(*words, **hands):
        assert words[-1].device == "cuda"
        return original(*words[:-1], replace(words[-1], device="cpu"), **hands)

    monkeypatch.setattr(mine_module, "run_pass", elsewhere)
    found = mine_module.mine(store, tmp_path / "m", Tiny(), device="cuda").round
    assert (found.attrs["how"]["device"], found.derived) == ("cuda", ["centroids", "index", "knn", "pairs"])
