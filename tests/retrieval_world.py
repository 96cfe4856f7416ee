"""Small folders in the layouts of the retrieval datasets, ingested by their readers, and descriptors chosen by hand."""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from hardmine.pipeline.ingest import ingest
from hardmine.store.patches import PatchStore


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (len(path.name), 40, 80)).save(path)


def stored(kind: str, src: Path) -> PatchStore:
    ingest(kind, src, src.with_name(f"{kind}.store"))
    return PatchStore.open(src.with_name(f"{kind}.store"))


def on_a_line(store: PatchStore, places: dict[str, float]):
    """A `Describe` that puts each item at the place of its name, the last part of its source, on a line."""
    at = {name.encode(): place for name, place in places.items()}
    x = np.array([[at.get(source.split(b"/")[-1], 1e6 + i), 0] for i, source in enumerate(store.source.tolist())])
    return lambda rows: x[rows].astype(np.float32)


def cub(src: Path, classes: list[int]) -> PatchStore:
    """An image of each of these classes, in this order: 1.jpg, 2.jpg, ..."""
    for number in range(1, len(classes) + 1):
        picture(src / f"images/bird/{number}.jpg")
    numbered = enumerate(classes, 1)
    (src / "images.txt").write_text("".join(f"{n} bird/{n}.jpg\n" for n in range(1, len(classes) + 1)))
    (src / "image_class_labels.txt").write_text("".join(f"{n} {c}\n" for n, c in numbered))
    return stored("cub", src)


def cars(src: Path, classes: list[int]) -> PatchStore:
    fields = ["relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test"]
    rows = [(f"car_ims/{n}.jpg", 1, 1, 8, 8, c, 0) for n, c in enumerate(classes, 1)]
    annotations = np.array(rows, dtype=[(field, object) for field in fields])
    for row in rows:
        picture(src / str(row[0]))
    savemat(src / "cars_annos.mat", {"annotations": annotations})
    return stored("cars", src)


def sop(src: Path, classes: list[int]) -> PatchStore:
    """As `cub`, all of them of the test list; the training list has one product."""
    header = "image_id class_id super_class_id path\n"
    src.mkdir(parents=True)
    (src / "Ebay_train.txt").write_text(header + "1 1 1 bicycle_final/train.JPG\n")
    lines = [f"{n + 1} {c} 1 bicycle_final/{n}.jpg\n" for n, c in enumerate(classes, 1)]
    (src / "Ebay_test.txt").write_text(header + "".join(lines))
    for name in ("train.JPG", *(f"{n}.jpg" for n in range(1, len(classes) + 1))):
        picture(src / "bicycle_final" / name)
    return stored("sop", src)


def inshop(src: Path, queries: dict[str, int], gallery: dict[str, int]) -> PatchStore:
    """Image names and the number of their product; a training image beside them."""
    rows = [("train.jpg", 9999, "train")]
    rows += [(name, item, "query") for name, item in queries.items()]
    rows += [(name, item, "gallery") for name, item in gallery.items()]
    lines = [f"img/WOMEN/Dresses/{name}   id_{item:08}   {status}\n" for name, item, status in rows]
    (src / "Eval").mkdir(parents=True)
    header = f"{len(rows)}\nimage_name item_id evaluation_status\n"
    (src / "Eval/list_eval_partition.txt").write_text(header + "".join(lines))
    for name, _, _ in rows:
        picture(src / "Img/img/WOMEN/Dresses" / name)
    return stored("inshop", src)


def deepfashion2(src: Path, images: list[tuple[str, int, list[int]]]) -> PatchStore:
    """Images of the validation part, 000001.jpg and on: their source, their pair_id, and the style of each garment."""
    for number, (source, pair, styles) in enumerate(images, 1):
        picture(src / f"validation/image/{number:06}.jpg")
        items = {
            f"item{i}": {"style": style, "category_id": 1, "category_name": "vest", "bounding_box": [0, 0, 8, 8]}
            for i, style in enumerate(styles, 1)
        }
        path = src / f"validation/annos/{number:06}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"source": source, "pair_id": pair} | items))
    return stored("deepfashion2", src)


def market1501(src: Path, queries: list[str], gallery: list[str]) -> PatchStore:
    """Files called so, and one in the training folder."""
    for folder, names in (
        ("bounding_box_train", ["1400_c1s1_000001_00.jpg"]),
        ("query", queries),
        ("bounding_box_test", gallery),
    ):
        for name in names:
            picture(src / folder / name)
    return stored("market1501", src)
