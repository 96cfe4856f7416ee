"""Rules for hard negatives from the whole set, found by name: `ranked` takes the nearest ones, `drawn` draws."""

from hardmine.mining.negative_rules.base import DrawnRule, RankedRule, Rule, rules

__all__ = ["DrawnRule", "RankedRule", "Rule", "rules"]
