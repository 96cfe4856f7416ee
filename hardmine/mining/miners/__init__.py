"""In-batch miners, found by name: one file per strategy."""

from hardmine.mining.batch import Batch
from hardmine.mining.miners.base import Miner, Tuples, miners

__all__ = ["Batch", "Miner", "Tuples", "miners"]
