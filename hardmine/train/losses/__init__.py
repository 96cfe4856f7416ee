"""Losses, found by name: one file per idea."""

from hardmine.train.losses.base import Loss, LossOutput, losses

__all__ = ["Loss", "LossOutput", "losses"]
