"""The demo, made small: every part in seconds."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("skimage", reason="the demo's photographs come with scikit-image: pip install 'hardmine[demo]'")

from hardmine.demo import Settings, demo, photographs
from hardmine.demo.matching import match_pair, mutual_nearest
from hardmine.demo.picture import draw
from hardmine.demo.settings import ADASAMPLE, HARDNET, Places, recipe
from hardmine.errors import MissingError
from hardmine.pipeline.images import read_grey
from hardmine.protocols.base import Evaluated
from hardmine.train.networks import build

SMALL = Settings(
    training=("page.png", "text.png"),
    held_out=("coins.png",),
    training_points=30,
    training_patches=3,
    held_out_points=40,
    held_out_patches=3,
    pairs=6,
    steps=3,
    mine_every=2,
    match_points=60,
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of a finished demo, what it returned, and what it said."""
    out, said = tmp_path_factory.mktemp("work") / "demo", []
    return out, demo(out, say=said.append, settings=SMALL), said


def test_the_table_has_every_row_and_column(done):
    _, found, _ = done
    (table,) = found["tables"]
    assert table["columns"] == ["descriptor", "held-out photographs", "stereo pair"]
    names = ["pixels", "OpenCV SIFT", "untrained network", "HardNet (random pairs)", "AdaSample"]
    assert [row[0] for row in table["rows"]] == names
    for name, *cells in table["rows"]:
        assert cells == [f"{100 * found['fpr95'][name][column]:.2f} %" for column in table["columns"][1:]]
    assert found["fpr95"]["OpenCV SIFT"]["stereo pair"] < 0.2
    assert any("little disparity" in note and "noise" in note for note in found["notes"])


def test_it_leaves_a_picture_and_the_figures(done):
    out, found, _ = done
    with Image.open(out / "hardmine-demo.png") as picture:
        assert min(picture.size) > 800
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(found))


def test_each_step_is_said_with_its_time(done):
    _, found, said = done
    for step, seconds in found["seconds"].items():
        if step != "in all":
            assert any(line.startswith(f"{seconds:6.1f} s  {step}") for line in said), step


def test_the_trainings_end_with_rounds_that_the_evaluation_uses(done):
    _, _, said = done
    assert sum("0 rows embedded for the trained networks" in line for line in said) == 2


def test_again_it_does_nothing_anew(done):
    out, found, _ = done
    weights = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    said = []
    again = demo(out, say=said.append, settings=SMALL)
    assert sum("finished before" in line for line in said) == 2
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == weights
    for part in ("tables", "fpr95", "matches", "counts"):
        assert again[part] == found[part]


def test_the_trainings_differ_in_the_sampler_alone(tmp_path):
    one, other = (recipe(Places(tmp_path), Settings(), s).model_dump() for s in (HARDNET, ADASAMPLE))
    assert one.pop("sampler") != other.pop("sampler")
    assert one == other


def test_the_sets_of_photographs_are_disjoint_and_there():
    s = Settings()
    sets = [s.training, s.held_out, photographs.VALIDATION, photographs.STEREO]
    everything = [name for names in sets for name in names]
    assert len(set(everything)) == len(everything)
    assert all((photographs.folder() / name).is_file() for name in everything)


def test_without_scikit_image_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(photographs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"pip install 'hardmine\[demo\]'"):
        demo(tmp_path, say=print, settings=SMALL)


def test_a_photograph_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(photographs, "folder", lambda: tmp_path / "data")
    with pytest.raises(MissingError, match=r"camera\.png is missing.*hardmine\[demo\]"):
        photographs.copy(["camera.png"], tmp_path / "copies")


def test_copies_that_are_there_stay(tmp_path):
    (tmp_path / "page.png").write_bytes(b"mine")
    photographs.copy(["page.png", "text.png"], tmp_path)
    assert (tmp_path / "page.png").read_bytes() == b"mine"
    assert (tmp_path / "text.png").read_bytes() == (photographs.folder() / "text.png").read_bytes()


def test_mutual_nearest_is_what_a_double_loop_finds():
    rng = np.random.default_rng(0)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rng.standard_normal((n, 5)) for n in (30, 40)))
    distance = np.array([[np.linalg.norm(x - y) for y in b] for x in a])
    expected = [
        (i, j) for i in range(30) for j in range(40) if distance[i, j] == min(distance[i]) == min(distance[:, j])
    ]
    assert list(zip(*mutual_nearest(a, b))) == expected
    assert len(mutual_nearest(a[:0], b)[0]) == 0


def test_matches_are_judged_by_the_disparity():
    left = read_grey(photographs.folder() / "coins.png")
    right, disparity = np.roll(left, -16, axis=1), np.full(left.shape, 16, np.float32)
    network = build("l2net", {}, 0).eval()
    good = match_pair(network, left, right, disparity, 40)
    assert good.correct.mean() > 0.8
    assert len(good.left) == len(good.right) == len(good.correct) > 10
    assert str(good) == f"{good.correct.sum()} of {len(good.correct)} right"
    assert match_pair(network, left, right, disparity + 6, 40).correct.mean() < 0.1
    disparity[:, : left.shape[1] // 2] = np.nan  # what is unknown is not judged
    assert match_pair(network, left, right, disparity, 40).left[:, 0].min() > left.shape[1] / 2 - 1


def test_a_picture_without_matches_can_be_drawn(tmp_path):
    curve = (np.array([0, 0.5, 1]), np.array([0, 0.9, 1]))
    image = np.zeros((50, 80), np.uint8)
    flat = np.full(image.shape, np.nan, np.float32)
    none = match_pair(build("l2net", {}, 0).eval(), image, image, flat, 10)
    draw(tmp_path / "a.png", {"x": Evaluated({"fpr95": 0.5}, {}, curve)}, image, image, {"before": none, "after": none})
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert list(Path(tmp_path).glob(".*")) == []
