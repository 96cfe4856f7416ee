"""`photos`: spots of photographs in seeded views."""

import pickle
from itertools import pairwise

import cv2
import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from hardmine.errors import InputError, MissingError
from hardmine.pipeline import frames as fr
from hardmine.pipeline.images import read_grey
from hardmine.pipeline.readers.base import Reject, readers
from hardmine.pipeline.readers.photos import Photos, PhotosOptions
from hardmine.pipeline.readers.spots import matching_pairs, other_pairs
from hardmine.pipeline.readers.warps import generator_for, random_warp, relight

SMALL = PhotosOptions(patches_per_class=3, points_per_photo=15, pairs=40)


def texture(seed: int, shape: tuple[int, int] = (160, 200)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    image = sum(s * cv2.GaussianBlur(rng.standard_normal(shape), (0, 0), s) for s in (1.5, 3))
    return np.clip(128 + 60 * image / image.std(), 0, 255).astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    for i, name in enumerate(["a.png", "b.png", "sub/c.png"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(texture(i)).save(tmp_path / name)
    return tmp_path


def pixels(reader: Photos, numbers=None) -> dict[int, np.ndarray]:
    numbers = range(len(reader.candidates().source)) if numbers is None else numbers
    return dict(reader.read(numbers))


def test_classes_are_full_and_columns_belong_together(folder):
    reader = readers.get("photos")(folder, SMALL)
    found = reader.candidates()
    n = len(found.raw_label)
    assert n == 3 * 15 * 3
    assert found.pixel_shape == (64, 64)
    np.testing.assert_array_equal(found.raw_label, np.repeat(np.arange(45), 3))
    np.testing.assert_array_equal(found.columns["view"], np.tile([0, 1, 2], 45))
    np.testing.assert_array_equal(found.columns["image"], np.repeat([0, 1, 2], 45))
    assert found.columns["frame"].shape == (n, 4)
    assert found.columns["frame"].dtype == np.float32
    assert found.source[0] == b"a.png#0/0"
    assert found.source[-1] == b"sub/c.png#14/2"
    assert len(set(found.source.tolist())) == n
    assert found.rejects == []
    assert [p.name for p in found.files] == ["a.png", "b.png", "c.png"]
    patches = pixels(reader)
    assert sorted(patches) == list(range(n))
    assert all(p.shape == (64, 64) and p.dtype == np.uint8 for p in patches.values())


def test_view_0_is_cut_from_the_photograph_and_the_others_show_the_same_spot(folder):
    options = SMALL.model_copy(update={"frame_noise": 0.0, "photometric": 0.3, "warp": 0.5})
    reader = Photos(folder, options)
    found, patches = reader.candidates(), pixels(reader)
    image = read_grey(folder / "a.png")
    frames, _ = fr.detect(image, reach=fr.REACH)
    first = found.columns["frame"][:45:3]
    assert all(np.abs(frames - f).max(axis=1).min() < 1e-3 for f in first)
    near = fr.cut(image, first)
    assert max(np.abs(near[i].astype(int) - patches[3 * i]).max() for i in range(15)) <= 2
    same = [np.corrcoef(patches[i].ravel(), patches[i + 1].ravel())[0, 1] for i in range(0, 135, 3)]
    other = [np.corrcoef(patches[i].ravel(), patches[i + 4].ravel())[0, 1] for i in range(0, 130, 3)]
    assert np.median(same) > 0.9
    assert np.median(other) < 0.3


def test_the_frame_of_a_view_says_where_in_the_photograph_the_patch_lies(folder):
    reader = Photos(folder, SMALL.model_copy(update={"photometric": 0.0, "warp": 0.3}))
    found, patches = reader.candidates(), pixels(reader)
    assert fr.inside(found.columns["frame"][found.columns["view"] == 0], (160, 200)).all()
    cut = fr.cut(read_grey(folder / "a.png"), found.columns["frame"][:45])
    alike = [np.corrcoef(cut[i].ravel(), patches[i].ravel())[0, 1] for i in range(45)]
    assert np.median(alike) > 0.95  # frame noise included: without the frame they are far less alike


def test_every_view_has_its_own_warp_light_and_frame_noise(folder):
    for name in ("warp", "photometric", "frame_noise"):
        alone = {"warp": 0.0, "photometric": 0.0, "frame_noise": 0.0, name: 1.0}
        patches = pixels(Photos(folder, SMALL.model_copy(update=alone)), [0, 1, 2, 45, 46])
        for i, j in [(0, 1), (0, 2), (1, 2)]:
            assert np.abs(patches[i].astype(int) - patches[j]).mean() > 1, (name, i, j)


def test_patches_lie_inside_the_photograph_in_every_view(folder):
    found = Photos(folder, SMALL.model_copy(update={"warp": 0.0, "points_per_photo": 1000})).candidates()
    assert fr.inside(found.columns["frame"].astype(float), (160, 200)).all()
    assert found.counts["points dropped: not inside the photograph in every view"] > 3


def test_any_slice_and_any_process_gives_the_same_pixels(folder):
    reader = Photos(folder, SMALL)
    everything = pixels(reader)
    numbers = [1, 2, 44, 45, 50, 134]
    for other in (reader, Photos(folder, SMALL), pickle.loads(pickle.dumps(reader))):
        read = list(other.read(np.array(numbers)))
        assert [number for number, _ in read] == numbers
        for number, patch in read:
            np.testing.assert_array_equal(patch, everything[number])


def test_another_photograph_changes_no_pixel_of_the_others(folder):
    reader = Photos(folder, SMALL)
    before = dict(zip(reader.candidates().source, pixels(reader).values(), strict=True))
    Image.fromarray(texture(9)).save(folder / "aa.png")
    reader = Photos(folder, SMALL)
    after = dict(zip(reader.candidates().source, pixels(reader).values(), strict=True))
    assert len(after) == len(before) + 45
    for source, patch in before.items():
        np.testing.assert_array_equal(after[source], patch)


def test_the_seed_changes_the_views_but_not_the_photograph(folder):
    one, two = (pixels(Photos(folder, SMALL.model_copy(update={"seed": s, "frame_noise": 0.1}))) for s in (1, 2))
    np.testing.assert_array_equal(one[0], two[0])
    assert np.abs(one[1].astype(int) - two[1]).max() > 20


def test_byte_identical_photographs_are_read_once(folder):
    (folder / "copy.png").write_bytes((folder / "a.png").read_bytes())
    found = Photos(folder, SMALL).candidates()
    assert len(found.raw_label) == 135
    assert found.counts["photographs that another one equals byte for byte (dropped)"] == 1


def test_bad_photographs_are_rejects_and_the_rest_goes_on(folder):
    (folder / "b.png").write_bytes(b"")
    found = Photos(folder, SMALL).candidates()
    assert found.rejects == [Reject(b"b.png", "empty file (0 bytes)")]
    assert len(found.raw_label) == 90
    np.testing.assert_array_equal(np.unique(found.columns["image"]), [0, 1])


def test_a_photograph_that_goes_away_or_changes_after_listing_is_a_reject_in_place(folder):
    reader = Photos(folder, SMALL)
    reader.candidates()
    (folder / "b.png").unlink()
    Image.fromarray(texture(5, (100, 100))).save(folder / "a.png")
    read = dict(reader.read([0, 45, 46, 90]))
    assert read[0] == Reject(b"a.png#0/0", "changed while it was being ingested; ingest again")
    assert read[46] == Reject(b"b.png#0/1", "no such file")
    assert isinstance(read[90], np.ndarray)


def test_large_photographs_are_shrunk_and_frames_are_in_the_files_pixels(tmp_path):
    Image.fromarray(cv2.resize(texture(0), None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)).save(tmp_path / "a.png")
    found = Photos(tmp_path, SMALL.model_copy(update={"max_side": 200})).candidates()
    (tmp_path / "half").mkdir()
    half = cv2.resize(read_grey(tmp_path / "a.png"), (200, 160), interpolation=cv2.INTER_AREA)
    Image.fromarray(half).save(tmp_path / "half/a.png")
    small = Photos(tmp_path / "half", SMALL).candidates()
    expected = small.columns["frame"] * [2, 2, 2, 1] + [0.5, 0.5, 0, 0]
    np.testing.assert_allclose(found.columns["frame"], expected, atol=1e-3)


def test_pairs_are_unique_balanced_and_apart(folder):
    found = Photos(folder, SMALL).candidates()
    pair = found.pairs["pairs_40"]
    assert pair.match.sum() == (~pair.match).sum() == 40
    assert len({(a, b) for a, b in zip(pair.first.tolist(), pair.second.tolist(), strict=True)}) == 80
    label, image = found.raw_label, found.columns["image"]
    np.testing.assert_array_equal(label[pair.first] == label[pair.second], pair.match)
    np.testing.assert_array_equal(image[pair.first], image[pair.second])
    spot = found.columns["frame"][found.columns["view"] == 0]
    a, b = spot[label[pair.first[~pair.match]]], spot[label[pair.second[~pair.match]]]
    apart = np.hypot(*(a - b)[:, :2].T)
    assert (apart > 16).all()
    assert (apart > 3 * np.maximum(a[:, 2], b[:, 2])).all()
    assert Photos(folder, SMALL.model_copy(update={"pairs": 0})).candidates().pairs == {}


def test_pairs_that_are_not_to_be_had_are_counted(tmp_path):
    Image.fromarray(texture(0)).save(tmp_path / "a.png")
    found = Photos(tmp_path, PhotosOptions(patches_per_class=2, points_per_photo=8, pairs=1000)).candidates()
    assert found.counts["matching evaluation pairs short of 1000"] == 992
    assert found.pairs["pairs_1000"].match.sum() == 8


def test_every_matching_pair_can_be_had_and_classes_count_alike():
    offsets = np.array([0, 2, 7, 8, 11])
    rng = np.random.default_rng(0)
    everything = matching_pairs(offsets, 1000, rng)
    expected = {(i, j) for a, b in pairwise(offsets) for i in range(a, b) for j in range(i + 1, b)}
    assert set(map(tuple, everything.tolist())) == expected
    assert len(everything) == len(expected) == 14
    for _ in range(5):
        three = matching_pairs(offsets, 3, rng)  # one each of the classes that have any
        assert sorted(np.searchsorted(offsets, three[:, 0], side="right").tolist()) == [1, 2, 4]


def test_every_non_matching_pair_can_be_had():
    offsets, group = np.array([0, 2, 4, 6, 8]), np.array([0, 0, 0, 1])
    frames = np.array([[0.0, 0, 5, 0], [17, 0, 5, 0], [34, 0, 5, 0], [0, 0, 5, 0]])
    near = other_pairs(offsets, group, frames, 0.0, 1000, np.random.default_rng(0))
    assert set(map(tuple, near.tolist())) == {(i, j) for i in range(6) for j in range(i + 1, 6) if i // 2 != j // 2}
    patch_wide = other_pairs(offsets, group, frames, 8.0, 1000, np.random.default_rng(0))
    assert set(map(tuple, patch_wide.tolist())) == {(i, j) for i in (0, 1) for j in (4, 5)}


def test_nothing_to_work_on_says_why(tmp_path):
    with pytest.raises(MissingError):
        Photos(tmp_path / "nowhere", SMALL).candidates()
    Image.fromarray(np.full((80, 80), 9, np.uint8)).save(tmp_path / "flat.png")
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"2 photographs listed, 1 could not be read, 1 read.*bad.jpg: not an image"):
        Photos(tmp_path, SMALL).candidates()


def test_a_photograph_with_few_points_is_counted(folder):
    Image.fromarray(texture(3, (70, 70))).save(folder / "few.png")
    Image.fromarray(np.full((80, 80), 9, np.uint8)).save(folder / "none.png")
    counts = Photos(folder, SMALL).candidates().counts
    assert counts["photographs read"] == 5
    assert counts["photographs without a usable point"] == 1
    assert counts["photographs with fewer than 15 points"] == 1


def test_wrong_options_are_refused():
    for bad in ({"patches_per_class": 1}, {"warp": 9}, {"patch_per_class": 4}):
        with pytest.raises(ValidationError):
            PhotosOptions(**bad)


@pytest.mark.parametrize("strength", [0.0, 1.0, 2.0])
def test_a_warp_holds_the_whole_photograph_unmirrored(strength):
    edge = np.array([[x, y, 2.0, 0] for x in np.linspace(0, 199, 9) for y in np.linspace(0, 159, 9)])
    for i in range(50):
        warp = random_warp(generator_for(0, i), (160, 200), strength)
        seen = fr.project(edge, warp.homography)
        assert fr.contains(warp.shape, seen[:, :2]).all()
    if strength == 0:
        np.testing.assert_allclose(seen, edge, atol=1.5)


def test_relight_changes_light_not_place():
    image = texture(0)
    np.testing.assert_array_equal(relight(image, generator_for(0), 0), image)
    for i in range(5):
        seen = relight(image, generator_for(i), 1.0)
        assert not np.array_equal(seen, image)
        assert np.corrcoef(seen.ravel(), image.ravel())[0, 1] > 0.8


def test_generators_differ_by_every_part_of_the_key():
    keys = [(0,), (1,), (0, b"a", 1), (0, b"a", 2), (0, b"a1"), (0, b"a", b"1", 1), (0, b"a,1", 1)]
    first = [generator_for(*key).integers(2**62) for key in keys]
    assert len(set(first)) == len(keys)
    assert generator_for(0, b"a", 1).integers(2**62) == first[2]
