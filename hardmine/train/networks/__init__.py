"""Descriptor networks, found by name: one file per architecture."""

from hardmine.train.networks.base import Network, build, load_weights, networks

__all__ = ["Network", "build", "load_weights", "networks"]
