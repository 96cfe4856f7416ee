"""Reference figures on real image sequences in PhotoTour's layout: baselines and published weights, to the last digit
that was published for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hardmine.pipeline.ingest import ingest
from hardmine.protocols.evaluate import evaluate
from hardmine.train.networks import build, load_weights

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif("HARDMINE_SHARED" not in os.environ, reason="HARDMINE_SHARED names no folder with real data"),
]

FIGURES = {"pixels": 39.0, "sift": 14.8, "tfeat-liberty.params": 5.4, "HardTFeat.pth": 3.4}


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """The patch store of the sequences boat, bikes and leuven."""
    shared, root = Path(os.environ["HARDMINE_SHARED"]), tmp_path_factory.mktemp("views")
    sequences = [str(shared / "data" / "sequences" / name) for name in ("boat", "bikes", "leuven")]
    command = [sys.executable, "make_phototour.py", str(root / "raw"), *sequences]
    subprocess.run(command, cwd=shared / "tools", check=True, capture_output=True)
    report = ingest("phototour", root / "raw", root / "store")
    assert report.counts["patches kept"] == 9343
    return root / "store"


@pytest.mark.parametrize("weights", ["tfeat-liberty.params", "HardTFeat.pth"])
def test_published_weights_and_baselines_reproduce_their_figures(weights, views, tmp_path):
    network = build("tfeat", {"unit_norm": weights.startswith("Hard")})
    load_weights(network, Path(os.environ["HARDMINE_SHARED"]) / "data" / "weights" / weights)
    baselines = ["pixels", "sift"] if weights.startswith("tfeat") else []
    report = evaluate("phototour", views, tmp_path / "mining", network=network.eval(), name=weights, compare=baselines)
    found = {name: round(100 * result.metrics["fpr95"], 1) for name, result in report.results.items()}
    assert found == {name: FIGURES[name] for name in (*baselines, weights)}
