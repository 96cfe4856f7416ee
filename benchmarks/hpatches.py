"""The three HPatches tasks at full size, time and peak memory: python benchmarks/hpatches.py [TASK ...] [KEY=VALUE ...]

116 sequences of 1,300 patches a strip (2.4 million patches), random 128-d unit vectors drawn for the rows that are
asked for: what is measured is the protocol, not a network. Further words key=value are options of the protocols. Each
task runs in a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

PATCHES, DIM, KINDS = 1300, 128, 16
TASKS = ("hpatches-verification", "hpatches-matching", "hpatches-retrieval")


class Full:
    """A stand-in for the patch store of the whole release: columns, and pixels of noise."""

    def __init__(self) -> None:
        from hardmine.pipeline.readers.hpatches_names import SEQUENCES

        strip = KINDS * PATCHES
        self.path, self.manifest = Path("made-up"), SimpleNamespace(kind="hpatches")
        self.source_rows = len(SEQUENCES) * strip
        self._columns = {
            "sequence": np.repeat(np.arange(len(SEQUENCES)), strip),
            "kind": np.tile(np.repeat(np.arange(KINDS), PATCHES), len(SEQUENCES)),
            "index": np.tile(np.arange(PATCHES), len(SEQUENCES) * KINDS),
        }
        self.raw_label = np.repeat(np.array([name.encode() + b":00000" for name in SEQUENCES]), strip)

    def __len__(self) -> int:
        return self.source_rows

    def column(self, name: str) -> np.ndarray | None:
        return self._columns.get(name)

    def resolve_split(self, split: str | None) -> str:
        return "all"

    def rows(self, split: str | None = None) -> np.ndarray:
        return np.arange(len(self))

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return np.random.default_rng(int(rows[0])).integers(0, 256, (len(rows), 65, 65), np.uint8)


def describe(rows: np.ndarray) -> np.ndarray:
    """Seeded unit vectors, of which a spot's own resemble each other; rows of one strip, as the tasks ask for them."""
    sequence, within = np.divmod(rows, KINDS * PATCHES)
    kind, index = np.divmod(within, PATCHES)
    spot = np.random.default_rng(int(sequence[0])).standard_normal((PATCHES, DIM), np.float32)[index]
    noise = np.random.default_rng([int(sequence[0]), int(kind[0])]).standard_normal((len(rows), DIM), np.float32)
    values = spot + 1.5 * noise
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def measure(task: str, options: dict[str, Any]) -> None:
    """Run one task and print a line."""
    from hardmine.protocols.base import protocol

    method, store = protocol(task, options), cast(Any, Full())
    began, busy = time.perf_counter(), time.process_time()
    found = method.evaluate(store, describe, None)
    seconds, used = time.perf_counter() - began, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures = ", ".join(f"{name} {value:.4f}" for name, value in found.metrics.items())
    print(f"{task}: {seconds:.0f} s ({used:.0f} s of processor), peak {peak:.2f} GiB; {figures}", flush=True)


def main(words: list[str]) -> None:
    """Each task named, or all, in a fresh process."""
    options = [word for word in words if "=" in word]
    for task in [word for word in words if "=" not in word] or TASKS:
        subprocess.run([sys.executable, __file__, "--one", task, *options], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        from hardmine.options import apply_override

        chosen: dict[str, Any] = {}
        for override in sys.argv[3:]:
            apply_override(chosen, override, "option")
        measure(sys.argv[2], chosen)
    else:
        main(sys.argv[1:])
