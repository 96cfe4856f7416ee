"""`stereo`: a rectified pair and its disparity map."""

import pickle

import cv2
import numpy as np
import pytest
from PIL import Image

from hardmine.errors import InputError, UnknownNameError
from hardmine.pipeline import frames as fr
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Reject, readers
from hardmine.pipeline.readers.stereo import Stereo, StereoOptions, at, look_at_patches, read_disparity, visible
from hardmine.store.patches import PatchStore

HEIGHT, WIDTH = 200, 320
NEAR, FAR = 30.0, 8.0
EXACT = StereoOptions(frame_noise=0, pairs=100)


def texture(seed):
    rng = np.random.default_rng(seed)
    image = sum(s * cv2.GaussianBlur(rng.standard_normal((HEIGHT, WIDTH + 60)), (0, 0), s) for s in (1.5, 3))
    return np.clip(128 + 60 * image / image.std(), 0, 255).astype(np.uint8)


@pytest.fixture
def pair(tmp_path):
    """A wall at disparity 8, and before it, in the columns 130 to 229 of the left photograph, another one at 30."""
    wall, board = texture(0), texture(1)
    x = np.arange(WIDTH)
    front_left, front_right = (x >= 130) & (x < 230), (x >= 100) & (x < 200)
    left = np.where(front_left, board[:, x], wall[:, x])
    right = np.where(front_right, board[:, x + 30], wall[:, x + 8])
    disparity = np.broadcast_to(np.where(front_left, NEAR, FAR), (HEIGHT, WIDTH)).astype(np.float32).copy()
    Image.fromarray(left).save(tmp_path / "left.png")
    Image.fromarray(right).save(tmp_path / "right.png")
    np.savez(tmp_path / "disparity.npz", disparity)
    return tmp_path


def test_both_patches_of_a_class_show_the_same(pair):
    ingest("stereo", pair, pair / "store", options=EXACT.model_dump())
    store = PatchStore.open(pair / "store")
    assert store.num_classes > 15
    assert (np.bincount(store.label) == 2).all()
    assert (store.column("image").reshape(-1, 2) == [0, 1]).all()
    frame = store.column("frame").reshape(-1, 2, 4)
    moved = frame[:, 0, 0] - frame[:, 1, 0]
    assert set(np.unique(np.rint(moved))) == {NEAR, FAR}, "spots of both walls"
    np.testing.assert_array_equal(frame[:, 0, 1:], frame[:, 1, 1:])
    patches = store.gather(np.arange(len(store))).reshape(-1, 2, 64 * 64).astype(float)
    correlation = [np.corrcoef(a, b)[0, 1] for a, b in patches]
    assert min(correlation) > 0.7  # up to a tenth of a patch may be hidden
    assert np.median(correlation) > 0.99
    pairs = store.pairs()
    assert (store.label[pairs.first] == store.label[pairs.second]).tolist() == pairs.match.tolist()
    assert pairs.match.sum() == min(100, store.num_classes)


def test_no_kept_patch_lies_across_the_edge_of_the_near_wall(pair):
    reader = Stereo(pair, EXACT)
    found = reader.candidates()
    # by brute force: every pixel of the photograph that lies in the patch
    y, x = np.indices((HEIGHT, WIDTH))
    disparity = np.where((x >= 130) & (x < 230), NEAR, FAR)
    for fx, fy, size, angle in found.columns["frame"][::2].astype(float):
        u, v = x - fx, y - fy
        along, down = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
        inside = np.maximum(abs(along), abs(down)) <= fr.REACH / 2 * size
        hidden = (disparity == FAR) & (x >= 108) & (x < 130)  # the near wall covers these in the right photograph
        assert hidden[inside].mean() <= EXACT.hidden + 0.03
        assert np.ptp(disparity[inside & ~hidden]) <= EXACT.span * fr.REACH * size
    assert found.counts["points dropped: disparity spans more than 0.15 of the patch"] > 0
    assert found.counts["points dropped: hidden in the right photograph, or of unknown disparity"] > 0


def test_visible_leaves_out_what_is_covered_outside_or_unknown():
    disparity = np.full((2, 12), 1, np.float32)
    disparity[0, 8:10] = 4
    disparity[1, 5] = np.nan
    seen = visible(disparity)
    assert np.flatnonzero(np.isnan(seen[0])).tolist() == [0, 5, 6]  # pixel 0 is outside; 8 and 9 land on 4 and 5
    assert np.flatnonzero(np.isnan(seen[1])).tolist() == [0, 5]
    assert at(disparity, np.array([[7.6, 0.2], [50, -3]])).tolist() == [4, 1]


def test_a_patch_whose_middle_is_unknown_is_never_kept():
    disparity = np.full((40, 40), 5, np.float32)
    disparity[20, 20] = np.nan
    frames = np.array([[20, 20, 2, 0.3], [28, 20, 2, 0.3], [20.0, 27, 3, 0]])
    span, hidden = look_at_patches(disparity, frames)
    assert span.tolist() == [np.inf, 0, 0]
    assert hidden[0] == np.inf
    assert hidden[1] == 0
    assert 0 < hidden[2] < 0.01


def test_frame_noise_belongs_to_the_seed_and_to_the_right_photograph(pair):
    def frames(**options):
        return Stereo(pair, StereoOptions(**options)).candidates().columns["frame"].reshape(-1, 2, 4)

    noisy, again, other = frames(), frames(), frames(seed=1)
    np.testing.assert_array_equal(noisy, again)
    assert not np.array_equal(noisy[0, 1], other[0, 1])
    size = noisy[:, 1, 2] / noisy[:, 0, 2]
    assert np.log2(size).std() == pytest.approx(0.2, rel=0.5)


def test_reading_a_part_gives_the_same_patches(pair):
    reader = pickle.loads(pickle.dumps(Stereo(pair, EXACT)))
    count = len(reader.candidates().source)
    whole = dict(reader.read(range(count)))
    part = dict(Stereo(pair, EXACT).read([1, 4, 5]))
    assert list(part) == [1, 4, 5]
    assert all(np.array_equal(patch, whole[number]) for number, patch in part.items())
    (pair / "right.png").write_bytes(b"")
    kinds = [isinstance(item, Reject) for _, item in reader.read([0, 1, 2])]
    assert kinds == [False, True, False]


def test_other_forms_of_the_map(pair):
    disparity = read_disparity(pair / "disparity.npz")
    np.save(pair / "whole.npy", disparity.astype(np.uint16))
    np.testing.assert_array_equal(read_disparity(pair / "whole.npy"), disparity)
    disparity[0, :3] = [np.inf, -1, np.nan]
    np.save(pair / "holes.npy", disparity)
    assert np.isnan(read_disparity(pair / "holes.npy")[0, :4]).tolist() == [True, True, True, False]


def test_bad_input_is_named(pair):
    def fails(match, **options):
        with pytest.raises(InputError, match=match):
            Stereo(pair, StereoOptions(**options)).candidates()

    fails("nowhere.png", left="nowhere.png")
    fails("nowhere.npz", disparity="nowhere.npz")
    (pair / "noise.npy").write_bytes(b"not an array")
    fails("noise.npy cannot be read", disparity="noise.npy")
    np.savez(pair / "two.npz", a=np.zeros(3), b=np.zeros(3))
    fails("two.npz has 2 arrays", disparity="two.npz")
    np.save(pair / "objects.npy", np.array([None]), allow_pickle=True)
    fails("objects.npy cannot be read", disparity="objects.npy")
    np.save(pair / "colours.npy", np.zeros((HEIGHT, WIDTH, 3)))
    fails("colours.npy holds", disparity="colours.npy")
    np.save(pair / "small.npy", np.zeros((HEIGHT, 7)))
    fails("small.npy is 7x200, but left.png 320x200", disparity="small.npy")
    np.save(pair / "unknown.npy", np.full((HEIGHT, WIDTH), np.nan))
    fails("no usable point", disparity="unknown.npy")
    assert "stereo" in readers.names()
    with pytest.raises(UnknownNameError, match="'span'"):
        ingest("stereo", pair, pair / "store", options={"spam": 1})
