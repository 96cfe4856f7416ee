"""`hpatches-sequences`: strips cut from whole images."""

from __future__ import annotations

import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from hardmine.errors import InputError
from hardmine.pipeline import frames as fr
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Reject, readers
from hardmine.pipeline.readers.hpatches_sequences import HPatchesSequencesOptions
from hardmine.protocols.base import protocol
from hardmine.protocols.baselines import baseline
from hardmine.store.patches import PatchStore

SMALL = HPatchesSequencesOptions(points=12)


def write(folder: Path, seed: int) -> list[np.ndarray]:
    """Six images, each a little smaller and more turned than the last."""
    folder.mkdir(parents=True)
    rng, shape = np.random.default_rng(seed), (260, 280)
    noise = sum(s * cv2.GaussianBlur(rng.standard_normal(shape), (0, 0), s) for s in (1.5, 3))
    first = np.clip(128 + 60 * noise / noise.std(), 0, 255).astype(np.uint8)
    homographies = [np.eye(3)]
    for k in range(2, 7):
        turn = cv2.getRotationMatrix2D((140, 130), 4.0 * (k - 1), 0.97 ** (k - 1))
        homographies.append(np.vstack([turn, [0, 0, 1]]))
        np.savetxt(folder / f"H_1_{k}", homographies[-1])
    for k, h in enumerate(homographies, start=1):
        Image.fromarray(cv2.warpPerspective(first, h, shape[::-1])).save(folder / f"{k}.ppm")
    return homographies


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("sequences")
    for seed, name in enumerate(("v_turn", "i_turn")):
        write(root / name, seed)
    return root


def test_the_layout_is_that_of_the_patches(folder):
    found = readers.get("hpatches-sequences")(folder, SMALL).candidates()
    assert len(found.source) == 2 * 16 * 12
    assert found.pixel_shape == (65, 65)
    columns = found.columns
    assert (columns["kind"][:192] == np.repeat(np.arange(16), 12)).all()
    assert (columns["index"] == np.tile(np.arange(12), 32)).all()
    assert found.raw_label[13] == b"i_turn:00001"
    assert found.source[[0, 13, 383]].tolist() == [b"i_turn/ref:0", b"i_turn/e1:1", b"v_turn/t5:11"]
    assert len(np.unique(columns["image"])) == 12
    same = columns["image"] == columns["image"][12]  # e1, h1, t1 are cut from one image
    assert np.unique(columns["kind"][same]).tolist() == [1, 6, 11]


def test_frames_follow_the_homographies_with_errors_that_grow(folder):
    found = readers.get("hpatches-sequences")(folder, HPatchesSequencesOptions(points=60)).candidates()
    exact = readers.get("hpatches-sequences")(folder, HPatchesSequencesOptions(points=60, noise=0)).candidates()

    def errors(candidates):
        frames = candidates.columns["frame"].astype(float)[: len(candidates.source) // 2].reshape(16, -1, 4)
        out = []
        for kind in range(1, 16):
            turn = cv2.getRotationMatrix2D((140, 130), 4.0 * ((kind - 1) % 5 + 1), 0.97 ** ((kind - 1) % 5 + 1))
            seen = fr.project(frames[0], np.vstack([turn, [0, 0, 1]]))
            out.append(np.hypot(*(frames[kind, :, :2] - seen[:, :2]).T) / seen[:, 2])
        return np.array(out).reshape(3, -1)

    assert errors(exact).max() < 1e-4
    easy, hard, tough = np.median(errors(found), axis=1)
    for median, sigma in ((easy, 0.05), (hard, 0.1), (tough, 0.18)):  # the median of a length is 1.177 sigma
        assert median == pytest.approx(1.177 * sigma, rel=0.3)
    image = np.asarray(Image.open(folder / "v_turn/4.ppm").convert("L"))
    number = len(found.source) // 2 + 8 * (len(found.source) // 32)  # the first patch of v_turn/h3
    assert found.source[number] == b"v_turn/h3:0"
    ((_, patch),) = readers.get("hpatches-sequences")(folder, HPatchesSequencesOptions(points=60)).read([number])
    frame = found.columns["frame"][number : number + 1].astype(float)
    assert np.abs(fr.cut(image, frame, 65)[0].astype(int) - patch).max() <= 2  # frames are stored as float32


def test_any_slice_in_any_order_and_after_pickling(folder):
    reader = readers.get("hpatches-sequences")(folder, SMALL)
    whole = dict(reader.read(range(384)))
    again = pickle.loads(pickle.dumps(readers.get("hpatches-sequences")(folder, SMALL)))
    for numbers in ([5, 11, 190, 383], [12], []):
        for number, patch in again.read(numbers):
            np.testing.assert_array_equal(patch, whole[number])


def test_a_sequence_needs_all_its_images(folder, tmp_path):
    for name in ("v_turn", "i_short"):
        write(tmp_path / name, 3)
    (tmp_path / "i_short/H_1_4").unlink()
    (tmp_path / "v_black").mkdir()
    for k in range(1, 7):
        Image.fromarray(np.zeros((99, 99), np.uint8)).save(tmp_path / f"v_black/{k}.ppm")
        np.savetxt(tmp_path / f"v_black/H_1_{k}", np.eye(3))
    found = readers.get("hpatches-sequences")(tmp_path, SMALL).candidates()
    reasons = {reject.source: reject.reason for reject in found.rejects}
    assert reasons[b"i_short"] == "images 4 of 1 to 6, or their homographies, are missing; the sequence is left out"
    assert reasons[b"v_black"] == "no spot whose 16 patches all lie inside their images"
    assert found.counts["sequences"] == 1
    (tmp_path / "v_turn/3.ppm").write_bytes(b"P6 nothing")
    with pytest.raises(InputError, match=r"no usable sequence of six images .*first reject: i_short"):
        readers.get("hpatches-sequences")(tmp_path, SMALL).candidates()


def test_an_image_that_is_gone_later_is_a_reject_for_each_of_its_patches(tmp_path):
    write(tmp_path / "v_turn", 3)
    reader = readers.get("hpatches-sequences")(tmp_path, SMALL)
    reader.candidates()
    (tmp_path / "v_turn/2.ppm").unlink()
    bad = [item for _, item in reader.read(range(192)) if isinstance(item, Reject)]
    assert [item.source for item in bad[:2]] == [b"v_turn/e1:0", b"v_turn/e1:1"]
    assert len(bad) == 36
    assert all(item.reason == "no such file" for item in bad)


def test_the_tasks_run_on_it(folder, tmp_path):
    ingest("hpatches-sequences", folder, tmp_path / "store", options={"points": 40})
    store = PatchStore.open(tmp_path / "store")
    for task, options in (("verification", {"pairs": 200}), ("matching", {}), ("retrieval", {})):
        found = protocol(f"hpatches-{task}", options).evaluate(store, baseline(store, "sift"), None)
        assert found.metrics["map"] > 0.8
        assert found.facts["sequences"] == 2
    single = readers.get("hpatches-sequences")(folder / "v_turn", SMALL).candidates()
    assert single.source[0] == b"v_turn/ref:0"
