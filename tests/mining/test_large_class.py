"""A class with more pairs than are kept in memory: through a file, with the same values."""

import subprocess
import sys

import numpy as np
import pytest

import hardmine.mining.derive as derive

CHILD = """
import resource, sys
from pathlib import Path
import numpy as np, torch
import hardmine.mining.derive as derive

torch.set_num_threads(1)
scratch = Path(sys.argv[1]) if len(sys.argv) > 1 else None
derive.MOST_IN_MEMORY = 1 << 20
x = np.random.default_rng(0).standard_normal((6000, 4)).astype(np.float32)
derive.class_pair_distances(x[:1100], np.array([0, 1100]), scratch=scratch)  # what libraries need is there now
data = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, ((data << 10) + (40 << 20),) * 2)
try:
    values, _ = derive.class_pair_distances(x, np.array([0, 6000]), scratch=scratch)  # 72 MB
    print(len(values), np.isclose(values[-1], np.linalg.norm(x[-1] - x[-2]), atol=1e-5))
except MemoryError:
    print("too much")
"""


def test_a_file_holds_the_same_distances_and_leaves_nothing_behind(tmp_path, monkeypatch):
    offsets = np.array([0, 3, 60, 60, 61])
    x = np.random.default_rng(0).standard_normal((61, 5)).astype(np.float32)
    expected, _ = derive.class_pair_distances(x, offsets)
    monkeypatch.setattr(derive, "MOST_IN_MEMORY", 100)
    monkeypatch.setattr(derive, "LARGE_CLASS", 20)
    found, _ = derive.class_pair_distances(x, offsets, scratch=tmp_path)
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on private memory is Linux's")
def test_memory_is_bounded_with_a_folder_and_not_without(tmp_path):
    outcomes = []
    for folder in ([str(tmp_path)], []):
        done = subprocess.run([sys.executable, "-c", CHILD, *folder], capture_output=True, text=True, check=True)
        outcomes.append(done.stdout.strip())
    assert outcomes == ["17997000 True", "too much"]
