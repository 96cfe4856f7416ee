"""Regularisers, found by name: what is added to any loss, computed on the whole batch. One file per idea."""

from hardmine.train.regularisers.base import Penalty, Regulariser, regularisers

__all__ = ["Penalty", "Regulariser", "regularisers"]
