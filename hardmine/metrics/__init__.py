"""Pure functions on arrays: what a set of descriptors is worth."""

LOWER_IS_BETTER = frozenset({"fpr95", "fpr95-hardnet", "fpr95-tian", "fpr95-legacy", "similarity-overlap"})
