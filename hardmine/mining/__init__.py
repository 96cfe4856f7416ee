"""From a patch store and a network to a mining round, and from a round to batch plans."""
