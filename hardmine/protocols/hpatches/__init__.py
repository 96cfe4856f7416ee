"""HPatches: patch verification, image matching and patch retrieval, as the benchmark's own code computes them."""
