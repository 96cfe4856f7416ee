"""The DeepFashion2 layout, whole and damaged."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hardmine.errors import MissingError
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.readers.base import Options, Picture, Reject, readers
from hardmine.pipeline.readers.deepfashion2 import PUBLISHED, SHOP, USER, DeepFashion2
from hardmine.store.patches import PatchStore


def item(style: int, category: int = 1, box: Any = (10, 20, 30, 60)) -> dict[str, Any]:
    return {
        "style": style,
        "category_id": category,
        "category_name": "short sleeve top",
        "bounding_box": list(box) if isinstance(box, tuple) else box,
        "landmarks": [0, 0, 0],
        "segmentation": [[1, 2, 3, 4]],
        "scale": 1,
        "occlusion": 1,
        "zoom_in": 1,
        "viewpoint": 2,
    }


def add(root: Path, part: str, number: int, source: str, pair: int, *items: dict[str, Any]) -> None:
    """One image (its content is its own name: a reader never decodes it) and its annotation."""
    for folder in ("image", "annos"):
        (root / part / folder).mkdir(parents=True, exist_ok=True)
    (root / part / f"image/{number:06}.jpg").write_bytes(f"{part} {number}".encode())
    content = {"source": source, "pair_id": pair} | {f"item{i}": each for i, each in enumerate(items, 1)}
    (root / part / f"annos/{number:06}.json").write_text(json.dumps(content))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    add(tmp_path, "train", 1, "user", 7, item(1), item(0, 8))
    add(tmp_path, "train", 2, "shop", 7, item(1, box=(1, 2, 3, 4)), item(2))
    add(tmp_path, "validation", 1, "user", 7, item(1), item(0))
    add(tmp_path, "validation", 2, "shop", 7, item(1), item(0), item(2))
    add(tmp_path, "validation", 3, "shop", 9, item(0))
    return tmp_path


def reader(root: Path) -> DeepFashion2:
    return DeepFashion2(root, Options())


def test_garments_labels_splits_and_columns(whole: Path) -> None:
    found = readers.get("deepfashion2")(whole, Options()).candidates()
    assert found.pixel_shape is None
    assert found.split is not None
    rows = list(zip(found.source.tolist(), found.raw_label.tolist(), found.split.tolist()))
    assert rows == [
        (b"train/image/000001.jpg#item1", b"train/000007/1", b"train"),
        (b"train/image/000001.jpg#item2", b"train/000007/0/000001/item2", b"train"),
        (b"train/image/000002.jpg#item1", b"train/000007/1", b"train"),
        (b"train/image/000002.jpg#item2", b"train/000007/2", b"train"),
        (b"validation/image/000001.jpg#item1", b"validation/000007/1", b"query"),
        (b"validation/image/000001.jpg#item2", b"validation/000007/0/000001/item2", b""),
        (b"validation/image/000002.jpg#item1", b"validation/000007/1", b"gallery"),
        (b"validation/image/000002.jpg#item2", b"validation/000007/0/000002/item2", b"gallery"),
        (b"validation/image/000002.jpg#item3", b"validation/000007/2", b"gallery"),
        (b"validation/image/000003.jpg#item1", b"validation/000009/0/000003/item1", b"gallery"),
    ]
    columns = found.columns
    assert {name: columns[name].dtype for name in columns if name != "box"} == dict.fromkeys(
        ("image", "role", "pair", "style", "category"), np.dtype(np.int64)
    )
    assert columns["image"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3, 4]
    assert columns["role"].tolist() == [USER, USER, SHOP, SHOP, USER, USER, SHOP, SHOP, SHOP, SHOP]
    assert columns["pair"].tolist() == [7] * 9 + [9]
    assert columns["style"].tolist() == [1, 0, 1, 2, 1, 0, 1, 0, 2, 0]
    assert columns["category"].tolist() == [1, 8] + [1] * 8
    assert (columns["box"].dtype, columns["box"].shape) == (np.float32, (10, 4))
    assert columns["box"][2].tolist() == [1, 2, 3, 4]
    assert found.rejects == []
    assert len(found.files) == 10
    assert found.crop


def test_a_garment_of_style_0_matches_nothing(whole: Path) -> None:
    found = reader(whole).candidates()
    zero = found.raw_label[found.columns["style"] == 0]
    assert len(set(zero.tolist())) == len(zero) == 4
    assert not set(zero.tolist()) & set(found.raw_label[found.columns["style"] > 0].tolist())


def test_read_gives_the_photograph_and_the_box(whole: Path) -> None:
    listed = reader(whole)
    listed.candidates()
    for source in (listed, reader(whole), pickle.loads(pickle.dumps(listed))):
        assert list(source.read([])) == []
        assert list(source.read([2, 8])) == [
            (2, Picture(b"train 2", b"train/image/000002.jpg#item1", (1.0, 2.0, 3.0, 4.0))),
            (8, Picture(b"validation 2", b"validation/image/000002.jpg#item3", (10.0, 20.0, 30.0, 60.0))),
        ]
    (whole / "validation/image/000002.jpg").unlink()
    items = dict(listed.read([5, 6, 7, 9]))
    assert items[6] == Reject(b"validation/image/000002.jpg#item1", "no such file")
    assert items[7] == Reject(b"validation/image/000002.jpg#item2", "no such file")
    assert isinstance(items[5], Picture)
    assert isinstance(items[9], Picture)


def test_garments_are_cut_out_of_their_photographs(tmp_path: Path) -> None:
    for number, source in ((1, "user"), (2, "shop")):
        add(tmp_path / "src", "validation", number, source, 5, item(1, box=(1, 2, 9, 12)), item(0, box=(10, 0, 30, 20)))
        pixels = np.random.default_rng(number).integers(0, 256, (15, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"src/validation/image/{number:06}.jpg", "PNG")
    for crop, shapes in ((None, [(10, 8, 3), (15, 10, 3)]), (False, [(15, 20, 3)] * 2)):
        pictures = None if crop is None else {"crop": crop}
        ingest("deepfashion2", tmp_path / "src", tmp_path / f"{crop}.store", pictures=pictures)
        store = PatchStore.open(tmp_path / f"{crop}.store")
        assert store.split_names == ["query", "gallery"]
        (query,) = store.rows("query")
        gallery = store.rows("gallery")
        found = dict(zip(store.source[gallery].tolist(), store.gather(gallery)))
        last = b"validation/image/000002.jpg#item%d"
        assert [found[last % i].shape for i in (1, 2)] == shapes
        if crop is None:
            np.testing.assert_array_equal(found[last % 1], pixels[2:12, 1:9])
        assert store.source[gallery[store.label[gallery] == store.label[query]]].tolist() == [last % 1]


def test_numbers_are_said_beside_the_published_ones(whole: Path) -> None:
    counts = reader(whole).candidates().counts
    assert counts == {
        "deepfashion2: images of users in validation (10,844 published)": 1,
        "deepfashion2: images of shops in validation (20,681 published)": 2,
        "deepfashion2: queries in validation (12,550 published)": 1,
        "deepfashion2: gallery in validation (37,183 published)": 4,
        "deepfashion2: garments of users without a style in validation, stored in no split": 1,
        "deepfashion2: images of users in train": 1,
        "deepfashion2: images of shops in train": 1,
    }
    assert PUBLISHED == {"images of users": 10844, "images of shops": 20681, "queries": 12550, "gallery": 37183}


def test_items_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    add(tmp_path, "train", 1, "user", 1, *(item(style) for style in range(1, 13)))
    assert reader(tmp_path).candidates().columns["style"].tolist() == list(range(1, 13))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (item(1, box=(30, 20, 30, 60)), "bounding_box [30, 20, 30, 60] is empty"),
        (item(1, box=[1, 2, 3]), "bounding_box is [1, 2, 3], not [x1, y1, x2, y2]"),
        (item(1, box=[1, 2, 3, float("nan")]), "bounding_box is [1, 2, 3, nan], not [x1, y1, x2, y2]"),
        (item(1, box="1 2 3 4"), "bounding_box is '1 2 3 4', not [x1, y1, x2, y2]"),
        (item(-1), "style is -1, not a whole number"),
        (item(1) | {"category_id": "top"}, "category_id is 'top', not a whole number"),
        ([], "the item is list, not an object"),
    ],
)
def test_an_item_that_cannot_be_used_is_a_reject(whole: Path, broken: Any, reason: str) -> None:
    add(whole, "train", 3, "user", 8, item(1), broken, item(2))
    found = reader(whole).candidates()
    assert found.rejects == [Reject(b"train/image/000003.jpg#item2", reason)]
    assert found.source[4:6].tolist() == [b"train/image/000003.jpg#item1", b"train/image/000003.jpg#item3"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty file (0 bytes)"),
        ("{", "is not JSON"),
        ("[]", "is no annotation"),
        ('{"source": "web", "pair_id": 1, "item1": {}}', "source is 'web', not 'user' or 'shop'"),
        ('{"source": "user", "item1": {}}', "pair_id is None, not a whole number"),
        ('{"source": "user", "pair_id": true, "item1": {}}', "pair_id is True, not a whole number"),
        ('{"source": "user", "pair_id": 1}', "has no item1: no garment is annotated"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_a_reject(whole: Path, content: str, reason: str) -> None:
    (whole / "train/annos/000001.json").write_text(content)
    found = reader(whole).candidates()
    ((source, said),) = [(reject.source, reject.reason) for reject in found.rejects]
    assert source == b"train/annos/000001.json"
    assert said.startswith(reason)
    assert found.source[0] == b"train/image/000002.jpg#item1"
    assert found.columns["image"][0] == 0


def test_images_and_annotations_without_each_other(whole: Path) -> None:
    (whole / "train/annos/000001.json").unlink()
    (whole / "train/image/000002.jpg").unlink()
    (whole / "train/image/.DS_Store").touch()
    (whole / "train/annos/readme.txt").touch()
    found = reader(whole).candidates()
    assert found.rejects == [
        Reject(b"train/image/000001.jpg", "annos/000001.json is missing"),
        Reject(b"train/annos/000002.json", "image/000002.jpg is missing"),
    ]
    assert found.counts["dot files skipped"] == found.counts["other files skipped"] == 1


def test_a_part_alone_and_wrong_folders(whole: Path) -> None:
    (whole / "train").rename(whole / "aside")
    found = reader(whole).candidates()
    assert found.counts["deepfashion2: train is not there"] == 1
    assert len(found.source) == 6
    with pytest.raises(MissingError, match=r"no train and no validation .*This is one part of it"):
        reader(whole / "validation").candidates()
    with pytest.raises(MissingError, match="no folder"):
        reader(whole / "nowhere").candidates()
    (whole / "validation/annos").rename(whole / "validation/labels")
    with pytest.raises(MissingError, match=r"no folder .*annos"):
        reader(whole).candidates()
