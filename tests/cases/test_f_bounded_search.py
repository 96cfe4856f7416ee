"""bugcases.md F74: a search that takes scratch memory by the gigabyte in each of several processes."""

import subprocess
import sys

import pytest

CHILD = """
import resource, sys
import numpy as np, torch
from hardmine.store.search import nearest_both

torch.set_num_threads(1)
x = np.random.default_rng(0).standard_normal((16_000, 16)).astype(np.float32)
rows, labels = np.arange(len(x)), np.arange(len(x)) // 4
nearest_both(x[:2000], rows[:2000], labels[:2000], 8)  # what libraries need is there now
data = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, ((data << 10) + (int(sys.argv[1]) << 20),) * 2)
try:
    found, others = nearest_both(x, rows, labels, 8)  # all distances at once would be 1 GB
    print(int((found.rows >= 0).sum()), int((others.rows >= 0).sum()))
except (MemoryError, RuntimeError):
    print("too much")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on private memory is Linux's")
def test_f74_the_exact_search_stays_within_a_block():
    outcomes = []
    for limit in (500, 10):
        done = subprocess.run([sys.executable, "-c", CHILD, str(limit)], capture_output=True, text=True)
        outcomes.append(done.stdout.strip() if done.returncode == 0 else "too much")  # OpenBLAS ends the process itself
    assert outcomes == [f"{16_000 * 8} {16_000 * 8}", "too much"]
