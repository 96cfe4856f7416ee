"""hardmine: mine hard examples once over a whole dataset, keep them on disk, and train descriptors from them.

The library in one line each; everything is imported when it is first used:

    load(RUN)                the trained network of a run, in eval mode
    describe_image           keypoints and descriptors of a photograph
    ingest, mine, evaluate   the stages, from paths to a path (training: `hardmine.train.loop.train`)
    PatchStore, MiningStore  what is on disk
    list_entries             what a sampler draws from: the items of a split, with their views
    loader, paired           plans with their pixels, from a patch store or from any other dataset
    negatives, audit         hard negatives out of a mined round; what in a dataset misleads mining
    readers, networks, samplers, miners, losses, regularisers    the parts, found by name
    Batch                    descriptors of a batch, what miners, losses and regularisers are called with
    tuples_from_pml          indices of pytorch-metric-learning's miners, for our losses
    fpr95, roc_curve         metrics on arrays; retrieve, Items: R@K, MAP@R, mAP of one's own descriptors
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardmine.metrics.fpr95 import fpr95
    from hardmine.metrics.roc import roc_curve
    from hardmine.mining.audit import audit
    from hardmine.mining.batch import Batch
    from hardmine.mining.class_distances import StoredDistances
    from hardmine.mining.entries import list_entries
    from hardmine.mining.foreign_tuples import tuples_from_pml
    from hardmine.mining.mine import mine
    from hardmine.mining.miners import miners
    from hardmine.mining.negatives import negatives
    from hardmine.mining.samplers import samplers
    from hardmine.pipeline.ingest import ingest
    from hardmine.pipeline.loading import loader, paired
    from hardmine.pipeline.readers import readers
    from hardmine.protocols.describe import describe_image
    from hardmine.protocols.evaluate import evaluate
    from hardmine.protocols.retrieval_figures import Items, retrieve
    from hardmine.store.patches import PatchStore
    from hardmine.store.rounds import MiningStore
    from hardmine.train.losses import losses
    from hardmine.train.networks import networks
    from hardmine.train.regularisers import regularisers
    from hardmine.train.runs import load

__version__ = "0.1.0"

_HOME = {
    "Batch": "mining.batch",
    "Items": "protocols.retrieval_figures",
    "MiningStore": "store.rounds",
    "PatchStore": "store.patches",
    "StoredDistances": "mining.class_distances",
    "audit": "mining.audit",
    "describe_image": "protocols.describe",
    "evaluate": "protocols.evaluate",
    "fpr95": "metrics.fpr95",
    "ingest": "pipeline.ingest",
    "list_entries": "mining.entries",
    "load": "train.runs",
    "loader": "pipeline.loading",
    "losses": "train.losses",
    "mine": "mining.mine",
    "miners": "mining.miners",
    "negatives": "mining.negatives",
    "networks": "train.networks",
    "paired": "pipeline.loading",
    "readers": "pipeline.readers",
    "regularisers": "train.regularisers",
    "retrieve": "protocols.retrieval_figures",
    "roc_curve": "metrics.roc",
    "samplers": "mining.samplers",
    "tuples_from_pml": "mining.foreign_tuples",
}

__all__ = [
    "Batch",
    "Items",
    "MiningStore",
    "PatchStore",
    "StoredDistances",
    "audit",
    "describe_image",
    "evaluate",
    "fpr95",
    "ingest",
    "list_entries",
    "load",
    "loader",
    "losses",
    "mine",
    "miners",
    "negatives",
    "networks",
    "paired",
    "readers",
    "regularisers",
    "retrieve",
    "roc_curve",
    "samplers",
    "tuples_from_pml",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'hardmine' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hardmine.{_HOME[name]}"), name)
