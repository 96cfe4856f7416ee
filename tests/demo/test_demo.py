"""The demo, made small: every part in seconds."""

import json

import cv2
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("skimage", reason="the demo's photographs come with scikit-image: pip install 'hardmine[demo]'")

from hardmine.demo import Settings, demo, photographs
from hardmine.demo.matching import Matches, match
from hardmine.demo.picture import draw
from hardmine.demo.settings import ADASAMPLE, HARDNET, Places, recipe
from hardmine.errors import MissingError
from hardmine.pipeline.ingest import ingest
from hardmine.protocols.base import Evaluated
from hardmine.store.patches import PatchStore
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
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder of a demo that was stopped after its first training and then finished, what that call returned, and
    what it said."""
    out, said = tmp_path_factory.mktemp("work") / "demo", []

    def stop(line):
        if "train HardNet" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo(out, say=stop, settings=SMALL)
    return out, demo(out, say=said.append, settings=SMALL), said


def test_it_goes_on_where_it_was_stopped(done):
    _, _, said = done
    assert [line.split(": ")[-1] for line in said if "train" in line[10:16]] == [
        "finished before",
        "3 steps of 6 pairs",
    ]


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
    steps = [line.split(" s  ") for line in said if " s  " in line]
    heard = {step.split(":")[0]: float(took) for took, step in steps}
    seconds = {step: took for step, took in found["seconds"].items() if step != "in all"}
    assert heard == pytest.approx(seconds, abs=0.06)
    assert list(heard) == list(seconds)


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


def test_a_match_is_right_where_the_disparity_carries_the_spot_to_it(tmp_path):
    left = cv2.imread(str(photographs.folder() / "coins.png"), cv2.IMREAD_GRAYSCALE)
    cv2.imwrite(str(tmp_path / "left.png"), left)
    cv2.imwrite(str(tmp_path / "right.png"), np.roll(left, -16, axis=1))
    np.save(tmp_path / "disparity.npy", np.full(left.shape, 16.0))
    options = {"disparity": "disparity.npy", "frame_noise": 0}
    ingest("stereo", tmp_path, tmp_path / "store", options=options)
    found = match(PatchStore.open(tmp_path / "store"), build("l2net", {}, 0).eval())
    assert len(found.left) == len(found.right) == len(found.correct) > 50
    assert found.correct.mean() > 0.95
    assert str(found) == f"{found.correct.sum()} of {len(found.correct)} matches right"
    moved = found.left - found.right
    np.testing.assert_allclose(moved[found.correct], np.tile([16, 0], (found.correct.sum(), 1)), atol=1e-3)


def test_a_picture_of_few_matches_can_be_drawn(tmp_path):
    curve = (np.array([0, 0.5, 1]), np.array([0, 0.9, 1]))
    image = np.zeros((50, 80), np.uint8)
    none = Matches(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0, bool))
    one = Matches(np.full((1, 2), 9.0), np.full((1, 2), 3.0), np.ones(1, bool))
    curves = {"x": Evaluated({"fpr95": 0.5}, curves={"roc": curve})}
    draw(tmp_path / "a.png", curves, image, image, {"before": none, "after": one})
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
