import numpy as np
import pytest

from hardmine.errors import InputError, UnknownNameError
from hardmine.pipeline.splits import parse_split

LABEL = np.repeat(np.arange(60), 3)


def test_by_class_draws_the_fraction_and_follows_the_seed():
    codes = parse_split("by-class:0.8", 0).codes(LABEL, 60, None)
    assert (codes == 0).sum() == 48
    assert np.array_equal(codes, parse_split("by-class:0.8", 0).codes(LABEL, 60, None))
    assert not np.array_equal(codes, parse_split("by-class:0.8", 1).codes(LABEL, 60, None))


def test_by_image_keeps_every_photograph_on_one_side():
    image = LABEL // 6 * 10  # ten photographs of six classes each
    codes = parse_split("by-image:0.7", 0).codes(LABEL, 60, image)
    sides = {photo: set(codes[LABEL[image == photo]].tolist()) for photo in np.unique(image)}
    assert all(len(side) == 1 for side in sides.values())
    assert sum(side == {0} for side in sides.values()) == 7


def test_by_image_keeps_photographs_that_share_a_class_together():
    image = np.arange(180) % 3 + 3 * (LABEL // 20)  # three scenes, each seen in three photographs
    codes = parse_split("by-image:0.67", 3).codes(LABEL, 60, image)
    scenes = [set(codes[20 * s : 20 * s + 20].tolist()) for s in range(3)]
    assert sorted(map(sorted, scenes)) == [[0], [0], [1]]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("by-clas:0.8", UnknownNameError, "Did you mean 'by-class'"),
        ("by-image:2", InputError, "by-image:FRACTION, a fraction of the photographs"),
        ("by-class", InputError, "by-class:FRACTION"),
    ],
)
def test_a_rule_that_cannot_be_read(text, error, message):
    with pytest.raises(error, match=message):
        parse_split(text, 0)


def test_an_empty_side_or_no_photographs_is_an_error():
    with pytest.raises(InputError, match=r"of 2 photographs .* leaves one side empty"):
        parse_split("by-image:0.9", 0).codes(LABEL, 60, LABEL // 30)
    with pytest.raises(InputError, match="does not say which photograph"):
        parse_split("by-image:0.9", 0).codes(LABEL, 60, None)
