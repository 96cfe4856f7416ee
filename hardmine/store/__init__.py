"""What is on disk, and its guarantees: patch stores, mining stores, nearest neighbours, content keys."""
