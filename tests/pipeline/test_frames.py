"""Keypoint frames against slow, obvious references."""

import cv2
import numpy as np
import pytest

from hardmine.errors import InputError
from hardmine.pipeline import frames as fr


def texture(seed: int = 0, shape: tuple[int, int] = (200, 240)) -> np.ndarray:
    """A grey image with structure of several sizes."""
    rng = np.random.default_rng(seed)
    image = sum(s * cv2.GaussianBlur(rng.standard_normal(shape), (0, 0), s) for s in (1.5, 3, 6))
    return np.clip(128 + 60 * image / image.std(), 0, 255).astype(np.uint8)


def random_frames(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack(
        [rng.uniform(0, 240, n), rng.uniform(0, 200, n), rng.uniform(3, 20, n), rng.uniform(-np.pi, np.pi, n)], axis=1
    )


HOMOGRAPHY = np.array([[0.9, 0.3, -10.0], [-0.2, 1.1, 30.0], [4e-4, -3e-4, 1.0]])


def test_detect_keeps_one_frame_per_spot_and_counts_the_rest():
    image = texture()
    keys = cv2.SIFT.create(contrastThreshold=0.02, enable_precise_upscale=True).detect(image, None)
    keys = [k for k in keys if 3 <= k.size <= 40]
    keys.sort(key=lambda k: (-k.response, k.pt, k.size, k.angle))
    kept: list[cv2.KeyPoint] = []
    for k in keys:
        if all(np.hypot(k.pt[0] - o.pt[0], k.pt[1] - o.pt[1]) > max(k.size, o.size) / 2 for o in kept):
            kept.append(k)
    frames, dropped = fr.detect(image)
    assert 30 < len(kept) < len(keys)
    np.testing.assert_allclose(frames[:, :3], [(*k.pt, k.size) for k in kept])
    np.testing.assert_allclose(np.rad2deg(frames[:, 3]), [k.angle for k in kept])
    assert dropped == len(keys) - len(kept)


def test_detect_limit_is_a_prefix_and_reach_leaves_out_the_edge():
    image = texture()
    frames, _ = fr.detect(image)
    np.testing.assert_array_equal(fr.detect(image, 7)[0], frames[:7])
    inner, _ = fr.detect(image, reach=fr.REACH)
    assert 0 < len(inner) < len(frames)
    assert fr.inside(inner, image.shape).all()
    assert not fr.inside(frames, image.shape).all()


@pytest.mark.parametrize("shape", [(1, 1), (2, 30), (9, 9)])
def test_detect_finds_nothing_in_tiny_images(shape):
    frames, dropped = fr.detect(np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8))
    assert frames.shape[1] == 4
    assert len(frames) + dropped < 5


def test_project_is_the_local_similarity_by_finite_differences():
    frames, step = random_frames(50), 1e-5
    seen = fr.project(frames, HOMOGRAPHY)

    def through(x: float, y: float) -> np.ndarray:
        u, v, w = HOMOGRAPHY @ [x, y, 1]
        return np.array([u / w, v / w])

    for (x, y, size, angle), found in zip(frames, seen, strict=True):
        centre = through(x, y)
        dx, dy = (through(x + step, y) - centre) / step, (through(x, y + step) - centre) / step
        ahead = through(x + step * np.cos(angle), y + step * np.sin(angle)) - centre
        grown = np.sqrt(dx[0] * dy[1] - dx[1] * dy[0])
        np.testing.assert_allclose(found, [*centre, size * grown, np.arctan2(ahead[1], ahead[0])], rtol=1e-4, atol=1e-4)


def test_project_there_and_back_is_where_we_were():
    frames = random_frames(20)
    back = fr.project(fr.project(frames, HOMOGRAPHY), np.linalg.inv(HOMOGRAPHY))
    np.testing.assert_allclose(back[:, :3], frames[:, :3])
    np.testing.assert_allclose(back[:, 3], frames[:, 3], atol=0.3)  # a similarity is not the whole affinity


def test_frames_behind_the_camera_or_mirrored_are_nan_and_inside_nothing():
    frames = np.array([[10.0, 10, 5, 0], [100, 10, 5, 0], [50, 10, 5, 0]])
    horizon_at_50 = np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 50, 0, 1]])
    seen = fr.project(frames, horizon_at_50)
    np.testing.assert_array_equal(np.isnan(seen).all(axis=1), [False, True, True])
    np.testing.assert_array_equal(fr.inside(seen, (10**6, 10**6)), [False, False, False])  # the first: x - 15 < 0
    assert np.isnan(fr.project(frames, np.diag([-1.0, 1, 1]))).all()
    np.testing.assert_allclose(fr.project(frames[:1], -HOMOGRAPHY), fr.project(frames[:1], HOMOGRAPHY))


def test_inside_is_about_the_turned_square():
    frames = np.array([[30.0, 30, 10, 0], [30, 30, 10, np.pi / 4], [29, 30, 10, 0], [42, 42, 10, np.pi / 4]])
    np.testing.assert_array_equal(fr.inside(frames, (90, 90)), [True, False, False, True])
    np.testing.assert_array_equal(fr.inside(frames, (59, 59)), [False, False, False, False])


def test_cut_at_step_one_is_the_crop_and_the_angle_turns_it():
    image = texture()
    crop = image[50:66, 40:56]
    frame = np.array([[47.5, 57.5, 16 / 6, 0.0]])
    np.testing.assert_array_equal(fr.cut(image, frame, side=16)[0], crop)
    frame[0, 3] = np.pi / 2  # the patch's x axis is the image's y axis
    np.testing.assert_array_equal(fr.cut(image, frame, side=16)[0], np.rot90(crop, 1))


@pytest.mark.parametrize("step", [1.2, 1.9, 3.7, 9.3])
def test_cut_neither_aliases_nor_shifts(step):
    side, (h, w) = 32, (700, 700)
    y, x = np.mgrid[:h, :w]
    fine = np.where((x + y) % 2, 255, 0).astype(np.uint8)
    frame = np.array([[351.3, 347.9, step * side / fr.REACH, 0.4]])
    assert fr.cut(fine, frame, side=side)[0].std() < 26  # of 127 in the image
    period = 12 * step  # twelve patch pixels: must come through, and in its place
    wave = np.rint(127.5 + 100 * np.sin(2 * np.pi * x / period)).astype(np.uint8)
    i, j = np.mgrid[:side, :side] - (side - 1) / 2
    at = frame[0, 0] + step * (np.cos(0.4) * j - np.sin(0.4) * i)
    got = fr.cut(wave, frame, side=side)[0].astype(float) - 127.5
    expected = np.sin(2 * np.pi * at / period)
    assert np.corrcoef(got.ravel(), expected.ravel())[0, 1] > 0.999
    assert np.abs(got).max() > 90
    quarter = np.cos(2 * np.pi * at / period)
    shift = (got * quarter).mean() / (got * expected).mean() * period / (2 * np.pi)
    assert abs(shift) < 0.1 * step + 0.05  # pixels of the image


def test_cut_sees_the_same_patch_in_a_turned_and_shrunk_image():
    image = texture(shape=(300, 300))
    frames, _ = fr.detect(image, 40, reach=9)
    turn = cv2.getRotationMatrix2D((149.5, 149.5), 25, 0.8)
    small = cv2.warpAffine(fr.low_pass(image, 1.25), turn, (300, 300), flags=cv2.INTER_LINEAR)
    seen = fr.project(frames, np.vstack([turn, [0, 0, 1]]))
    for a, b in zip(fr.cut(image, frames), fr.cut(small, seen), strict=True):
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.97


def test_cut_of_no_frames_and_of_bad_ones():
    image = texture()
    assert fr.cut(image, np.zeros((0, 4))).shape == (0, 64, 64)
    with pytest.raises(InputError, match="frame 1 is"):
        fr.cut(image, np.array([[50.0, 50, 5, 0], [np.nan, 50, 5, 0]]))
    with pytest.raises(InputError, match="frame 0 is"):
        fr.cut(image, np.array([[50.0, 50, 0, 0]]))
    with pytest.raises(InputError, match="grey uint8"):
        fr.cut(np.zeros((9, 9, 3), np.uint8), np.zeros((0, 4)))


def test_jitter_has_the_stated_size_and_a_longer_list_begins_alike():
    frames = np.tile([100.0, 100, 10, 1], (20000, 1))
    noisy = fr.jitter(frames, np.random.default_rng(0))
    np.testing.assert_allclose((noisy - frames)[:, :2].std(axis=0), 1.5, rtol=0.03)
    np.testing.assert_allclose(np.log2(noisy[:, 2] / 10).std(), 0.2, rtol=0.03)
    np.testing.assert_allclose(np.rad2deg(noisy[:, 3] - 1).std(), 12, rtol=0.03)
    np.testing.assert_array_equal(fr.jitter(frames[:5], np.random.default_rng(0)), noisy[:5])
    np.testing.assert_array_equal(fr.jitter(frames, np.random.default_rng(0), 0), frames)
