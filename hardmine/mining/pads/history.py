"""How the distribution moved over a training, kept as arrays."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardmine.errors import MissingError, StoreError
from hardmine.store.files import replacing

_ARRAYS = ("edges", "step", "p", "metric", "reward")


@dataclass
class History:
    """One line per call of the policy, and one before the first.

    edges: float64 (bins + 1,), of the grid of distances. step: int64 (T,), from which on p holds; 0 for the first line.
    p: float32 (T, bins). metric: float64 (T,), e_t of the call (NaN for the first line). reward: int8 (T,), r_t (0 for
    the first two lines)."""

    edges: np.ndarray
    step: np.ndarray
    p: np.ndarray
    metric: np.ndarray
    reward: np.ndarray

    @classmethod
    def starting(cls, edges: np.ndarray, p: np.ndarray) -> History:
        """Only the initial distribution p, float (bins,)."""
        first = np.zeros(1, np.int64), p[None].astype(np.float32), np.array([np.nan]), np.zeros(1, np.int8)
        return cls(np.asarray(edges, np.float64), *first)

    def __len__(self) -> int:
        return len(self.step)

    def append(self, step: int, p: np.ndarray, metric: float, reward: int) -> None:
        """Add a call."""
        self.step = np.append(self.step, np.int64(step))
        self.p = np.concatenate([self.p, p[None].astype(np.float32)])
        self.metric = np.append(self.metric, metric)
        self.reward = np.append(self.reward, np.int8(reward))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in _ARRAYS}

    def save(self, path: str | Path) -> None:
        """Write the arrays as a compressed .npz file, whole or not at all. Raises DiskError."""
        with replacing(Path(path)) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.arrays())

    @classmethod
    def load(cls, path: str | Path) -> History:
        """The history that `save` wrote. Raises MissingError, StoreError where it is damaged or something else."""
        path = Path(path)
        if not path.is_file():
            raise MissingError(f"no history of a distribution at {path}")
        try:
            with np.load(path, allow_pickle=False) as saved:
                return cls(*(saved[name] for name in _ARRAYS))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise StoreError(f"{path} is no history of a distribution, or damaged ({error})") from error
