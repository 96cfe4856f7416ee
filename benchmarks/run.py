"""hardmine against what one would use instead, as ratios measured in one run: python benchmarks/run.py [NAME ...]

Each row alternates the two sides and takes the fastest of several runs of each, so that a busy machine disturbs both
alike. A ratio above the budget is good; the budget is the least we accept. Data is made in a temporary folder.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gather import gather, stream
from ingest import ingest_phototour
from losses import loss_rows
from measure import Row, fastest, show
from mining import neighbours, network_passes, plan

ROOT = Path(__file__).parents[1]


def command_line(work: Path) -> list[Row]:
    (ours,) = fastest(
        lambda: subprocess.run([sys.executable, str(ROOT / "cli.py"), "--help"], capture_output=True, check=True)
    )
    return [("cli.py --help", f"{ours:.2f} s against 0.5 s", 0.5 / ours, 1)]


BENCHMARKS = {
    "gather": gather,
    "stream": stream,
    "plan": plan,
    "losses": loss_rows,
    "ingest": ingest_phototour,
    "network": network_passes,
    "neighbours": neighbours,
    "cli": command_line,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all, and print a line per row."""
    show(BENCHMARKS[name] for name in names or BENCHMARKS)


if __name__ == "__main__":
    main(sys.argv[1:])
