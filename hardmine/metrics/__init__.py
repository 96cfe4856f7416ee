"""Pure functions on arrays: what a set of descriptors is worth."""
