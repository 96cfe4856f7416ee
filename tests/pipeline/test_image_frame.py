"""How images become network input: the frame against Pillow, and augmentation as a function of seed, step and place."""

import numpy as np
import pytest
import torch
from PIL import Image

from hardmine.errors import InputError
from hardmine.options import check
from hardmine.pipeline.augment import Augment, TrainingImages
from hardmine.pipeline.image_frame import ImageFrame, as_channels, unit_interval


def images(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]


def pillow(item, frame):
    """Resize and cut by Pillow, whose bilinear filter averages when it shrinks."""
    image = Image.fromarray(item)
    image = image.convert("RGB" if frame.channels == 3 else "L")
    width, height = image.size
    scale = frame.resize / min(width, height)
    size = [
        int(frame.resize * edge / min(width, height)) if edge > min(width, height) else frame.resize
        for edge in (width, height)
    ]
    if scale != 1:
        image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = (round((edge - frame.side) / 2) for edge in image.size)
    cut = np.asarray(image)[top : top + frame.side, left : left + frame.side]
    return cut[None] if frame.channels == 1 else cut.transpose(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(40, 56, 3), (61, 33, 3), (24, 24, 3), (20, 50), (16, 16)])
def test_the_frame_is_pillows_resize_and_a_cut_from_the_centre(channels, shape):
    frame = ImageFrame(channels, resize=24, side=20)
    (item,) = images(shape)
    fitted = frame.fit([item])
    assert fitted.shape == (1, channels, 20, 20)
    assert fitted.dtype == torch.uint8
    assert (
        np.abs(fitted[0].numpy().astype(int) - pillow(item, frame).astype(int)).max() <= 2
    )  # rounding of two programs


def test_one_array_of_equal_images_gives_what_a_list_gives():
    frame = ImageFrame(3, resize=12, side=10)
    items = np.stack(images((30, 20, 3), (30, 20, 3)))
    assert torch.equal(frame.fit(items), frame.fit(list(items)))


def test_an_image_of_the_right_size_is_not_touched():
    (item,) = images((10, 10))
    assert np.array_equal(ImageFrame(1, 10, 10).fit([item])[0, 0].numpy(), item)
    assert np.array_equal(ImageFrame(3, 10, 10).fit([item])[0, 2].numpy(), item)


def test_grey_is_the_luma_that_ingest_uses():
    (item,) = images((9, 9, 3))
    luma = np.asarray(Image.fromarray(item).convert("L")).astype(int)
    assert np.abs(as_channels(item[None], 1)[0, 0].numpy().astype(int) - luma).max() <= 1


@pytest.mark.parametrize(("channels", "resize", "side"), [(2, 10, 10), (3, 8, 10), (1, 8, 0)])
def test_frames_that_cannot_be(channels, resize, side):
    with pytest.raises(InputError, match="ImageFrame"):
        ImageFrame(channels, resize, side)


def test_unit_interval_is_float_channels_last():
    x = unit_interval(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), torch.device("cpu"))
    assert x.flatten().tolist() == [0, 1]
    assert x.dtype == torch.float32


@pytest.mark.parametrize(
    "options",
    [{}, {"crop": "random", "shift": 2}, {"crop": "centre", "degrees": 15.0, "shift": 3}, {"scale": (0.16, 1.0)}],
)
def test_augmentation_is_a_function_of_seed_step_and_place(options):
    augment, frame = check(Augment, options, "augment"), ImageFrame(3, 24, 20)
    items = images((40, 30, 3), (25, 60, 3), (24, 24))
    torch.manual_seed(3)
    first = augment.apply(items, frame, seed=1, step=5)
    state = torch.get_rng_state()
    assert torch.equal(augment.apply(items, frame, seed=1, step=5), first)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not moved
    assert torch.equal(augment.apply(items[:2], frame, seed=1, step=5), first[:2])  # nor does the batch size matter
    assert first.shape == (3, 3, 20, 20)
    for seed, step in ((1, 6), (2, 5)):
        assert not torch.equal(augment.apply(items, frame, seed=seed, step=step), first)
    same = augment.apply([items[0], items[0]], frame, seed=1, step=5)
    assert not torch.equal(same[0], same[1])


def test_half_of_the_images_are_mirrored():
    frame, item = ImageFrame(1, 4, 4), np.arange(16, dtype=np.uint8).reshape(4, 4)
    found = Augment(crop="centre").apply([item] * 400, frame, seed=0, step=0)
    plain, mirrored = torch.from_numpy(item), torch.from_numpy(item[:, ::-1].copy())
    flipped = [torch.equal(x[0], mirrored) for x in found]
    assert all(f or torch.equal(x[0], plain) for f, x in zip(flipped, found))
    assert 160 < sum(flipped) < 240


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "centre", "scale": (0.2, 1.0)}, "belong to crop"),
        ({"scale": (0.0, 1.0)}, r"scale is a range within \(0, 1\]"),
        ({"ratio": (2.0, 1.0)}, "ratio is a range"),
        ({"degrees": 200}, "degrees"),
    ],
)
def test_unfit_options(options, message):
    with pytest.raises(InputError, match=message):
        check(Augment, options, "augment")


def test_the_transform_of_a_run_without_augmentation_is_the_frame():
    class Plan:
        step = 3

    frame, items = ImageFrame(3, 12, 10), images((20, 30, 3))
    assert torch.equal(TrainingImages(frame, None, 0)(items, Plan()), frame.fit(items))
    augmented = Augment().apply(items, frame, seed=4, step=3)
    assert torch.equal(TrainingImages(frame, Augment(), 4)(items, Plan()), augmented)
