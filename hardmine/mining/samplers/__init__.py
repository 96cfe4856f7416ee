"""Batch samplers: from a round (or nothing but labels) to batch plans, one strategy a file, found by name."""

from hardmine.mining.samplers.base import Sampler, samplers
from hardmine.mining.samplers.pairs import PairSampler

__all__ = ["PairSampler", "Sampler", "samplers"]
