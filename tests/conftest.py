"""Small data sets made on the spot, a reader of made-up items, and places to copy stores to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cv2
import fsspec
import numpy as np
import pytest

from hardmine.pipeline.readers import base


@pytest.fixture
def phototour(tmp_path: Path) -> Callable[..., np.ndarray]:
    """make(folder, count, ...) writes a PhotoTour folder and returns its patches (count, 64, 64)."""

    def make(
        folder: Path,
        count: int = 300,
        points: Sequence[int] | None = None,
        interest: bool = True,
        pairs: str | None = None,
    ) -> np.ndarray:
        folder.mkdir(parents=True, exist_ok=True)
        patches = np.random.default_rng(count).integers(0, 256, (count, 64, 64), dtype=np.uint8)
        for mosaic in range(-(-count // 256)):
            image = np.zeros((1024, 1024), np.uint8)
            for cell, patch in enumerate(patches[mosaic * 256 : (mosaic + 1) * 256]):
                y, x = cell // 16 * 64, cell % 16 * 64
                image[y : y + 64, x : x + 64] = patch
            cv2.imwrite(str(folder / f"patches{mosaic:04}.bmp"), image)
        points = [i // 3 for i in range(count)] if points is None else points
        (folder / "info.txt").write_text("".join(f"{point} 0\n" for point in points))
        if interest:
            lines = [f"{i % 5} {i}.5 {2 * i}.25 0.5 {i % 3}.0\n" for i in range(count)]
            (folder / "interest.txt").write_text("".join(lines))
        if pairs is not None:
            (folder / "m50_4_4_0.txt").write_text(pairs)
        return patches

    return make


class MadeUp:
    """Items from memory. Item i is a 4 x 5 patch of random bytes seeded by i; those in `bad` are rejected."""

    class Options(base.Options):
        sharpen: bool = False
        sigma: float = 1.0

    raw_label: np.ndarray = np.array([b"7", b"cat", b"007", b"cat", b"dog", b"7", b"cat"])
    source: np.ndarray | None = None
    bad: dict[int, str] = {}  # noqa: RUF012  (tests set them on a subclass)
    pairs: dict[str, base.Pair] = {}  # noqa: RUF012

    def __init__(self, src: Path, options: base.Options) -> None:
        self.src, self.options = src, options

    def candidates(self) -> base.Candidates:
        count = len(self.raw_label)
        source = np.array([b"item %d" % i for i in range(count)]) if self.source is None else self.source
        columns = {"image": np.arange(count) * 10}
        return base.Candidates(self.raw_label, source, (4, 5), columns, self.pairs)

    @staticmethod
    def pixels(number: int) -> np.ndarray:
        return np.random.default_rng(number).integers(0, 256, (4, 5), dtype=np.uint8)

    def read(self, numbers: Sequence[int] | np.ndarray) -> Iterator[tuple[int, np.ndarray | base.Reject]]:
        source = self.candidates().source
        for number in np.asarray(numbers).tolist():
            bad = number in self.bad
            yield number, base.Reject(source[number], self.bad[number]) if bad else self.pixels(number)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[MadeUp]]:
    """made_up(raw_label=..., bad=...) registers the reader "made-up" with those items for one test."""

    def make(**attributes: object) -> type[MadeUp]:
        reader = type("MadeUp", (MadeUp,), attributes)
        monkeypatch.setitem(base.readers._known, "made-up", reader)
        return reader

    return make


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a file that may not be read, wherever it lies: chmod 000 does not stop root, who may run the tests."""
    name, read_bytes = "locked.png", Path.read_bytes

    def guarded(path: Path) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    return name


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of moto's S3 server on this machine, to which s3:// URLs lead from now on."""
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "dummy")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A URL under which there is nothing yet."""
    return f"memory://{tmp_path.name}"


@pytest.fixture(params=["memory", "s3"])
def everywhere(request: pytest.FixtureRequest, place: str, tmp_path: Path) -> str:
    """As `place`, and then on S3."""
    if request.param == "memory":
        return place
    request.getfixturevalue("s3_server")
    bucket = tmp_path.name.replace("_", "-").lower()
    fsspec.filesystem("s3").mkdir(bucket)
    return f"s3://{bucket}"
