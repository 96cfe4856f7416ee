"""The benchmark for a GPU runs through, at a tiny size on whatever there is."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_prints_every_phase():
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--small"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    for name in ("network alone", "plan", "forward", "backward", "optimiser", "gather (ahead)", "mining", "evaluation"):
        assert name in done.stdout
