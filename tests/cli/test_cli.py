"""The command line as a user types it: photographs in, a descriptor out, and one clear message for each mistake."""

import json
import math
import subprocess
import sys

import cv2
import numpy as np
import pytest
from command import run

import hardmine.cli
from hardmine.printing import print_json

ROOT = hardmine.cli.Path(hardmine.cli.__file__).parents[1]


def photograph(seed, side=420):
    rng = np.random.default_rng(seed)
    image = sum(
        cv2.resize(rng.random((n, n)).astype(np.float32), (side, side), interpolation=cv2.INTER_CUBIC) * w
        for n, w in ((12, 1.0), (40, 0.7), (110, 0.4))
    )
    return np.clip(image / 2.1 * 255, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder of photographs, taken through the three commands."""
    root = tmp_path_factory.mktemp("own")
    (root / "photos").mkdir()
    for seed in range(4):
        cv2.imwrite(str(root / "photos" / f"photo {seed}.png"), photograph(seed))
    options = ["--set", "patches_per_class=3", "--set", "points_per_photo=40", "--set", "pairs=200"]
    report = run("ingest", "photos", root / "photos", root / "store", "--split", "by-image:0.75", *options, "--json")
    assert json.loads(report)["patches kept"] > 100
    short = ["train.pairs=12", "train.steps=4", "train.mine_every=2", "train.lag=2", "validation.every=2"]
    short += [f"data.store={root / 'store'}", f"validation.store={root / 'store'}"]
    sets = [word for setting in short for word in ("--set", setting)]
    done = json.loads(run("train", "own-photos", "--run", root / "run", *sets, "--json"))
    assert done["steps"] == 4
    return root


def test_three_commands_on_ones_own_photographs(world):
    found = json.loads(run("describe", world / "run", world / "photos" / "photo 1.png", world / "one.npz", "--json"))
    with np.load(world / "one.npz") as arrays:
        assert arrays["keypoints"].shape[1] == 4
        assert arrays["descriptors"].shape == (len(arrays["keypoints"]), 128)
        assert np.allclose(np.linalg.norm(arrays["descriptors"], axis=1), 1, atol=1e-5)
        assert found["keypoints"] == list(arrays["keypoints"].shape)
    run("describe", world / "run", world / "store", world / "store.npz", "--json")
    with np.load(world / "store.npz") as arrays:
        assert len(arrays["rows"]) == len(arrays["descriptors"])


def test_describing_the_same_photograph_twice_gives_the_same_bits(world):
    for name in ("a.npz", "b.npz"):
        run("describe", world / "run", world / "photos" / "photo 2.png", world / name)
    with np.load(world / "a.npz") as a, np.load(world / "b.npz") as b:
        assert np.array_equal(a["descriptors"], b["descriptors"])


def test_evaluate_compares_and_draws(world):
    words = ["evaluate", "phototour", world / "store", "--checkpoint", world / "run", "--split", "val"]
    first = json.loads(run(*words, "--compare", "pixels,sift", "--roc", world / "roc.png", "--json"))
    assert set(first["results"]) == {"pixels", "sift", "run"}
    assert first["embedded"] > 0
    assert cv2.imread(str(world / "roc.png")) is not None
    again = json.loads(run(*words, "--json"))
    assert again["embedded"] == 0
    assert again["results"]["run"] == first["results"]["run"]
    assert "rows embedded: 0" in run(*words)


def test_mine_does_nothing_on_a_key_that_is_there(world):
    words = ["mine", world / "store", world / "mined", "--checkpoint", world / "run", "--split", "train", "--json"]
    first, second = json.loads(run(*words)), json.loads(run(*words))
    assert first["embedded"] == first["counts"]["entries"] > 0
    assert not first["reused"]
    assert second["embedded"] == 0
    assert second["reused"]
    assert "nothing to embed" in second["messages"][0]
    assert set(second["derived"]) == {"pairs", "knn", "centroids", "index"}
    by_round = run(
        "evaluate", "phototour", world / "store", "--mining", world / "mined", "--round", "1", "--split", "train"
    )
    assert "rows embedded: 0" in by_round


@pytest.mark.parametrize(("which", "title"), [("store", "patch store"), ("run/mining", "mining store"), ("run", "run")])
def test_inspect_each_kind(world, which, title):
    found = json.loads(run("inspect", world / which, "--json"))
    assert title in found
    assert title in run("inspect", world / which)


def test_inspect_says_what_it_expected(world):
    assert "no patch store" in run("inspect", world / "photos", code=2)


def test_verify_names_a_damaged_file(world, tmp_path):
    import shutil

    shutil.copytree(world / "store", tmp_path / "store")
    assert json.loads(run("verify", tmp_path / "store", "--json"))["problems"] == []
    shard = tmp_path / "store" / "shards" / "000000.h5"
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    assert "000000.h5 is damaged" in json.loads(run("verify", tmp_path / "store", "--json", code=1))["problems"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ingest", "fotos", "a", "b"], "Did you mean 'photos'"),
        (["ingest", "photos", ".", "b", "--set", "points_per_foto=3"], "Did you mean 'points_per_photo'"),
        (["ingest", "phototour", "nowhere", "b"], "nowhere"),
        (["mine", "{store}", "b"], "either --checkpoint RUN or --network NAME"),
        (["mine", "{store}", "b", "--network", "l2nett", "--split", "val"], "Did you mean 'l2net'"),
        (["mine", "{store}", "b", "--network", "l2net"], "train, val"),
        (["mine", "{store}", "b", "--network", "l2net", "--split", "val", "--derive", "pair"], "Did you mean 'pairs'"),
        (["train", "hardnett"], "Did you mean 'hardnet'"),
        (["train", "hardnet", "--set", "train.stepz=1"], "Did you mean 'train.steps'"),
        (
            ["train", "hardnet", "--set", "sampler.lam=1", "--set", "data.store={store}", "--set", "data.split=val"],
            "lam",
        ),
        (["evaluate", "phototours", "{store}", "--checkpoint", "{run}", "--split", "val"], "Did you mean 'phototour'"),
        (["evaluate", "phototour", "{store}", "--round", "3", "--split", "val"], "no round 3"),
        (["describe", "{store}", "a.png", "b.npz"], "is no run"),
        (["describe", "{run}", "a.png", "b.npz"], "a.png"),
        (["describe", "{run}", "{store}", "b.txt"], "written as .npz"),
    ],
)
def test_a_mistake_gives_one_message_and_exit_code_2(world, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    filled = [w.format(store=world / "store", run=world / "run") for w in words]
    assert message in run(*filled, code=2)


def test_json_alone_is_on_stdout_and_help_is_quick():
    program = [sys.executable, str(ROOT / "cli.py")]
    done = subprocess.run([*program, "train", "nothing", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("hardmine: unknown recipe 'nothing'")
    assert "Traceback" not in done.stderr
    code = "import sys, hardmine.cli; print([m for m in ('torch', 'zarr', 'cv2', 'faiss') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_json_has_no_number_that_is_none(capsys):
    print_json({"lam": math.inf, "rows": [(-math.inf, math.nan), {"x": 0.5}], "text": "NaN", "none": None})
    text = capsys.readouterr().out
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found == {"lam": "Infinity", "rows": [["-Infinity", "NaN"], {"x": 0.5}], "text": "NaN", "none": None}


def test_a_path_that_cannot_be_written_is_one_message(phototour, tmp_path, monkeypatch, capsys):
    phototour(tmp_path / "raw", count=12)
    (tmp_path / "file").write_text("")
    words = ["hardmine", "ingest", "phototour", str(tmp_path / "raw"), str(tmp_path / "file" / "store")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        hardmine.cli.main()
    assert ended.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"hardmine: {tmp_path / 'file' / 'store'}: Not a directory")
