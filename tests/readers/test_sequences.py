"""`sequences`: independent detections that land on each other."""

import os
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from hardmine.errors import InputError, MissingError
from hardmine.pipeline import frames as fr
from hardmine.pipeline.readers.base import Reject, readers
from hardmine.pipeline.readers.sequence_folders import read_homography
from hardmine.pipeline.readers.sequences import Sequences, SequencesOptions, landed

SMALL = SequencesOptions(points=80, pairs=30)
HOMOGRAPHIES = {
    2: np.array([[0.95, 0.2, -5.0], [-0.2, 0.95, 25.0], [0, 0, 1]]),
    3: np.array([[0.9, 0.02, 8.0], [0.01, 0.85, 6.0], [2e-4, 1e-4, 1]]),
}


def texture(seed: int, shape: tuple[int, int] = (220, 240)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    image = sum(s * cv2.GaussianBlur(rng.standard_normal(shape), (0, 0), s) for s in (1.5, 3))
    return np.clip(128 + 60 * image / image.std(), 0, 255).astype(np.uint8)


def write(folder: Path, seed: int, image: str = "{}.png", homography: str = "H_1_{}") -> None:
    folder.mkdir(parents=True)
    first = texture(seed)
    Image.fromarray(first).save(folder / image.format(1))
    for k, h in HOMOGRAPHIES.items():
        Image.fromarray(cv2.warpPerspective(first, h, first.shape[::-1])).save(folder / image.format(k))
        np.savetxt(folder / homography.format(k), h)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "wall", 0)
    write(tmp_path / "boat", 1, "img{}.ppm", "H1to{}p")
    return tmp_path


def test_classes_are_detections_that_land_on_image_1s(folder):
    reader = readers.get("sequences")(folder, SMALL)
    found = reader.candidates()
    label, frame, image = found.raw_label, found.columns["frame"].astype(float), found.columns["image"]
    assert np.bincount(label).min() >= 2
    assert len(np.bincount(label)) > 40
    assert (np.diff(label) >= 0).all()
    np.testing.assert_array_equal(np.unique(image), np.arange(6))  # boat's three, then wall's
    assert found.source[0].startswith(b"boat/img1.ppm#")
    assert found.source[-1].startswith(b"wall/")
    first = np.unique(label, return_index=True)[1]
    for c in range(len(first)):
        rows = np.flatnonzero(label == c)
        assert image[rows[0]] % 3 == 0  # image 1 first, each image once
        assert len(set(image[rows])) == len(rows)
        for row in rows[1:]:
            expected = fr.project(frame[rows[:1]], HOMOGRAPHIES[image[row] % 3 + 1])[0]
            assert np.hypot(*(expected - frame[row])[:2]) < min(5, 0.8 * expected[2]) + 1e-3
            assert abs(np.log2(frame[row, 2] / expected[2])) < 0.5
            assert np.cos(frame[row, 3] - expected[3]) > np.cos(np.deg2rad(22.5))
    keys = [tuple(row) for row in np.column_stack([image, frame])]
    assert len(set(keys)) == len(keys)  # a detection belongs to one class
    for k in (0, 3):
        spots = frame[image == k]
        far = np.hypot(*(spots[:, None, :2] - spots[None, :, :2]).transpose(2, 0, 1))
        limit = np.maximum(spots[:, None, 2], spots[None, :, 2]) / 2
        assert (far > limit - 1e-3)[~np.eye(len(spots), dtype=bool)].all()


def test_patches_of_a_class_look_alike_and_slices_agree(folder):
    reader = Sequences(folder, SMALL)
    found = reader.candidates()
    patches = dict(reader.read(range(len(found.source))))
    assert list(patches) == list(range(len(found.source)))
    label = found.raw_label
    same = [
        np.corrcoef(patches[i].ravel(), patches[i + 1].ravel())[0, 1] for i in np.flatnonzero(label[1:] == label[:-1])
    ]
    other = [
        np.corrcoef(patches[i].ravel(), patches[i + 1].ravel())[0, 1] for i in np.flatnonzero(label[1:] > label[:-1])
    ]
    assert np.median(same) > 0.9
    assert np.median(other) < 0.3
    numbers = np.array([1, 2, 5, len(patches) - 1])
    for again in (Sequences(folder, SMALL), pickle.loads(pickle.dumps(reader))):
        for number, patch in again.read(numbers):
            np.testing.assert_array_equal(patch, patches[number])


def test_landed_against_every_pair():
    rng = np.random.default_rng(0)

    def some(n: int) -> np.ndarray:
        return np.column_stack([rng.uniform(0, 40, (n, 2)), rng.uniform(3, 8, n), rng.uniform(-0.5, 0.5, n)])

    expected, detected = some(60), some(70)
    expected[7] = np.nan
    cost = np.full((60, 70), np.inf)
    for i, e in enumerate(expected):
        for j, d in enumerate(detected):
            distance = np.hypot(e[0] - d[0], e[1] - d[1])
            turn = abs((e[3] - d[3] + np.pi) % (2 * np.pi) - np.pi)
            if distance < min(5, 0.8 * e[2]) and abs(np.log2(e[2] / d[2])) < 0.5 and turn < np.deg2rad(22.5):
                cost[i, j] = distance
    mutual = [
        (i, j)
        for i in range(60)
        for j in range(70)
        if np.isfinite(cost[i, j]) and cost[i].argmin() == j and cost[:, j].argmin() == i
    ]
    assert len(mutual) > 10
    assert list(zip(*(x.tolist() for x in landed(expected, detected)), strict=True)) == mutual
    assert [len(x) for x in landed(expected, detected[:0])] == [0, 0]


def test_pairs_come_from_one_sequence_and_spots_apart(folder):
    found = Sequences(folder, SMALL).candidates()
    pair = found.pairs["pairs_30"]
    label, sequence = found.raw_label, found.columns["image"] // 3
    assert pair.match.sum() == (~pair.match).sum() == 30
    np.testing.assert_array_equal(label[pair.first] == label[pair.second], pair.match)
    np.testing.assert_array_equal(sequence[pair.first], sequence[pair.second])
    spot = found.columns["frame"][np.unique(label, return_index=True)[1]]
    a, b = spot[label[pair.first[~pair.match]]], spot[label[pair.second[~pair.match]]]
    assert (np.hypot(*(a - b)[:, :2].T) > 16).all()
    assert len({(a, b) for a, b in zip(pair.first.tolist(), pair.second.tolist(), strict=True)}) == 60


def test_frame_noise_is_seeded_and_leaves_image_1_alone(folder):
    noisy = [SMALL.model_copy(update={"frame_noise": 1.0, "seed": s}) for s in (0, 0, 1)]
    a, b, c = (Sequences(folder, options).candidates() for options in noisy)
    np.testing.assert_array_equal(a.columns["frame"], b.columns["frame"])
    exact = Sequences(folder, SMALL).candidates()

    def frames(found, first: bool) -> dict[bytes, tuple[float, ...]]:
        rows = (found.columns["image"] % 3 == 0) == first
        return {tuple(f[:2]): tuple(f) for f in found.columns["frame"][rows].tolist()}

    assert frames(a, True).keys() <= frames(exact, True).keys()
    assert not frames(a, False).keys() & frames(exact, False).keys()
    assert not frames(a, False).keys() & frames(c, False).keys()


def test_the_sequence_itself_can_be_given(folder):
    found = Sequences(folder / "wall", SMALL).candidates()
    assert found.source[0].startswith(b"1.png#")


def test_what_is_missing_is_named_and_the_rest_goes_on(folder):
    (folder / "wall/3.png").unlink()
    (folder / "boat/H1to2p").unlink()
    write(folder / "headless", 2)
    (folder / "headless/1.png").unlink()
    (folder / "empty").mkdir()
    found = Sequences(folder, SMALL).candidates()
    assert [r.source for r in found.rejects] == [b"boat/img2.ppm", b"headless", b"wall/H_1_3"]
    assert [r.reason.split(";")[0] for r in found.rejects] == [
        "homography H_1_2 (or H1to2p) is missing",
        "image 1 is missing",
        "image 3 is missing, so this homography is of no use",
    ]
    assert found.counts["folders that are no sequence"] == 1
    assert {s.split(b"#")[0] for s in found.source.tolist()} == {
        b"boat/img1.ppm",
        b"boat/img3.ppm",
        b"wall/1.png",
        b"wall/2.png",
    }


def test_damaged_images_are_rejects(folder):
    content = (folder / "wall/2.png").read_bytes()
    (folder / "wall/2.png").write_bytes(content[: len(content) // 2])
    (folder / "boat/img1.ppm").write_bytes(b"")
    found = Sequences(folder, SMALL).candidates()
    assert found.rejects[0] == Reject(b"boat/img1.ppm", "empty file (0 bytes)")
    assert found.rejects[1] == Reject(b"boat", "image 1 cannot be used, so the sequence is left out")
    assert found.rejects[2].source == b"wall/2.png"
    assert found.rejects[2].reason.startswith(f"truncated ({len(content) // 2:,} bytes")
    assert {s.split(b"#")[0] for s in found.source.tolist()} == {b"wall/1.png", b"wall/3.png"}


def test_an_image_that_goes_away_after_listing_is_a_reject_in_place(folder):
    reader = Sequences(folder, SMALL)
    found = reader.candidates()
    (folder / "boat/img3.ppm").unlink()
    for number, patch in reader.read(range(len(found.source))):
        gone = found.source[number].startswith(b"boat/img3.ppm")
        assert isinstance(patch, Reject if gone else np.ndarray)
        if gone:
            assert patch == Reject(bytes(found.source[number]), "no such file")


def test_homographies_with_odd_white_space_are_read_and_malformed_ones_named(tmp_path):
    good = tmp_path / "H_1_2"
    good.write_text("1  0   -3.5e1 \r\n0\t1 2  \n\n0 0 1   \n")
    np.testing.assert_array_equal(read_homography(good), [[1, 0, -35], [0, 1, 2], [0, 0, 1]])
    for text, message in [
        ("1 0 0 0 1 0 0 0", "holds 8 numbers"),
        ("1,0,0\n0,1,0\n0,0,1", "is not nine numbers"),
        ("1 0 0 0 1 0 0 0 nan", "not finite"),
        ("1 2 3 2 4 6 0 0 1", "singular"),
        ("", "empty file"),
    ]:
        good.write_text(text)
        with pytest.raises(InputError, match=f"H_1_2.*{message}"):
            read_homography(good)


def test_a_malformed_homography_stops_and_names_the_file(folder):
    (folder / "wall/H_1_3").write_text("1 2 3")
    with pytest.raises(InputError, match=r"wall/H_1_3 holds 3 numbers"):
        Sequences(folder, SMALL).candidates()


def test_two_files_for_one_image_are_refused(folder):
    Image.fromarray(texture(0)).save(folder / "wall/img1.png")
    with pytest.raises(InputError, match=r"two files for image 1: 1.png and img1.png"):
        Sequences(folder, SMALL).candidates()


def test_a_folder_without_sequences_says_what_was_expected(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(InputError, match=r"any of its 1 folders.*Expected NAME/1.png.*H_1_2"):
        Sequences(tmp_path, SMALL).candidates()
    with pytest.raises(MissingError):
        Sequences(tmp_path / "nowhere", SMALL).candidates()


def test_images_that_have_nothing_in_common_say_so(tmp_path):
    write(tmp_path / "wall", 0)
    for k in (2, 3):
        Image.fromarray(np.full((220, 240), 99, np.uint8)).save(tmp_path / f"wall/{k}.png")
    with pytest.raises(InputError, match=r"seen twice: 1 usable sequences, 80 spots seen in image 1 only"):
        Sequences(tmp_path, SMALL).candidates()


@pytest.mark.shared
def test_a_real_sequence():
    shared = os.environ.get("HARDMINE_SHARED")
    if not shared:
        pytest.skip("needs the real image sequences that HARDMINE_SHARED names")
    found = Sequences(Path(shared, "data/sequences/graf"), SequencesOptions(points=300, pairs=100)).candidates()
    assert found.raw_label.max() > 50
    assert len(found.pairs["pairs_100"].match) == 200
