"""A reader of made-up image files, for tests of how images are stored."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from hardmine.pipeline.readers import base
from hardmine.store.decode import decode

Box = tuple[float, float, float, float]


def image_file(seed: int, shape: tuple[int, ...] = (12, 16, 3), form: str = "PNG", **options: object) -> bytes:
    """The bytes of an image of random pixels uint8."""
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **options)
    return buffer.getvalue()


def several(count: int = 7) -> list[bytes]:
    """Files of several sizes and formats; number 3 is grey."""
    forms = ["PNG", "JPEG", "WEBP", "PNG", "BMP", "TIFF", "PPM"]
    shapes = [(8 + i % 5, 10 + i % 3, 3) if i != 3 else (9, 9) for i in range(count)]
    return [image_file(i, shape, forms[i % len(forms)]) for i, shape in enumerate(shapes)]


class MadeUpPictures:
    """Image files from memory: `files`, and a box of each or None. The labels are out of order."""

    class Options(base.Options):
        pass

    files: ClassVar[list[bytes]] = several()
    boxes: ClassVar[list[Box | None] | None] = None
    names: ClassVar[list[bytes] | None] = None
    raw_label: ClassVar[np.ndarray | None] = None
    crop: ClassVar[bool] = False

    def __init__(self, src: Path, options: base.Options) -> None:
        self.src, self.options = src, options

    @property
    def sources(self) -> list[bytes]:
        return self.names or [b"photo %d" % i for i in range(len(self.files))]

    def candidates(self) -> base.Candidates:
        label = np.arange(len(self.files)) * 2 % 3 if self.raw_label is None else self.raw_label
        return base.Candidates(label, np.array(self.sources), None, crop=self.crop)

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, base.Picture | base.Reject]]:
        assert np.all(np.diff(numbers) > 0)
        for number in np.asarray(numbers).tolist():
            yield number, base.Picture(self.files[number], self.sources[number], self.boxes and self.boxes[number])

    @classmethod
    def pixels(cls, order: Sequence[int], colour: str = "rgb") -> list[np.ndarray]:
        return [decode(cls.files[number], colour) for number in order]  # type: ignore[arg-type]


def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[MadeUpPictures]]:
    """made(files=..., boxes=...) registers the reader "made-up-pictures" with those for one test."""

    def make(**attributes: object) -> type[MadeUpPictures]:
        reader = type("MadeUpPictures", (MadeUpPictures,), attributes)
        monkeypatch.setitem(base.readers._known, "made-up-pictures", reader)
        return reader

    return make
