import cv2
import numpy as np
import pytest
import torch

from hardmine.pipeline.pixels import prepare, rotate, turn_and_flip
from hardmine.pipeline.views import Views, uniform

PATCHES = np.random.default_rng(0).integers(0, 256, (6, 64, 64), np.uint8)


@pytest.mark.parametrize("side", [32, 64, 48])
def test_resizing_is_opencvs_bilinear(side):
    ours = prepare(torch.from_numpy(PATCHES), side).numpy() * 255
    theirs = np.stack([cv2.resize(p, (side, side), interpolation=cv2.INTER_LINEAR) for p in PATCHES]).astype(float)
    assert ours.shape == (6, 1, side, side)
    off = np.abs(ours[:, 0] - theirs)
    assert off.max() < 1.001  # OpenCV interpolates in fixed point
    assert (off > 0.5).mean() < (0.2 if side == 48 else 1e-9)


def test_half_size_is_the_rounded_mean_of_two_by_two():
    ours = prepare(torch.from_numpy(PATCHES), 32).numpy()[:, 0]
    plain = np.floor(PATCHES.reshape(6, 32, 2, 32, 2).mean((2, 4)) + 0.5) / 255
    assert np.abs(ours - plain).max() < 1e-6


def test_the_eight_symmetries_against_numpy():
    pixels = torch.from_numpy(np.random.default_rng(1).random((8, 1, 5, 5)))
    turned = turn_and_flip(pixels, torch.arange(8)).numpy()[:, 0]
    seen = set()
    for code in range(8):
        plain = pixels[code, 0].numpy()
        plain = plain.T if code & 1 else plain
        plain = plain[:, ::-1] if code & 2 else plain
        plain = plain[::-1] if code & 4 else plain
        assert np.array_equal(turned[code], plain)
        seen.add(tuple(turn_and_flip(torch.arange(25.0).view(1, 1, 5, 5), torch.tensor([code])).flatten().tolist()))
    assert len(seen) == 8


def test_a_quarter_turn_is_exact_and_counter_clockwise():
    pixels = torch.from_numpy(np.random.default_rng(1).random((1, 1, 9, 9)))
    turned = rotate(pixels, torch.tensor([np.pi / 2], dtype=torch.float64))
    assert np.allclose(turned[0, 0].numpy(), np.rot90(pixels[0, 0].numpy(), 1), atol=1e-6)


def test_rotation_matches_opencv_inside():
    ramp = cv2.GaussianBlur(PATCHES[0].astype(np.float32) / 255, (0, 0), 3)
    turned = rotate(torch.from_numpy(ramp)[None, None], torch.tensor([0.4]))[0, 0].numpy()
    matrix = cv2.getRotationMatrix2D((31.5, 31.5), np.rad2deg(0.4), 1)
    plain = cv2.warpAffine(ramp, matrix, (64, 64), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    assert np.abs(turned - plain)[16:-16, 16:-16].max() < 2e-3


def test_view_0_keeps_its_pixels_to_the_bit():
    angle = torch.tensor([0.0, 0.3, 0, 0, -0.2, 0])
    mixed, plain = prepare(torch.from_numpy(PATCHES), 32, angle=angle), prepare(torch.from_numpy(PATCHES), 32)
    same = angle == 0
    assert torch.equal(mixed[same], plain[same])
    assert not torch.equal(mixed[~same], plain[~same])


def test_angles_are_a_function_of_seed_row_and_view():
    views = Views(per_class=15, max_degrees=30, seed=1)
    rows, numbers = np.arange(20000), np.arange(20000) % 7
    angles = views.angles(rows, numbers)
    assert (angles[numbers == 0] == 0).all()
    spread = angles[numbers > 0]
    assert np.abs(spread).max() <= np.deg2rad(30)
    assert spread.mean() == pytest.approx(0, abs=0.01)
    assert spread.std() == pytest.approx(np.deg2rad(30) / np.sqrt(3), rel=0.02)
    assert np.array_equal(views.angles(rows[::-1], numbers[::-1]), angles[::-1])
    assert not np.array_equal(Views(per_class=15, seed=2).angles(rows, numbers), angles)
    assert len(np.unique(views.angles(np.full(6, 5), np.arange(1, 7)))) == 6


def test_counter_based_numbers_are_uniform():
    u = uniform(0, np.arange(100000))
    counts = np.histogram(u, 20, (0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 43.8  # chi-squared, 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.02
