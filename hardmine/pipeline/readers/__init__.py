"""Dataset layouts, one file each, found by name."""

from hardmine.pipeline.readers.base import Candidates, Pair, Reader, Reject, readers

__all__ = ["Candidates", "Pair", "Reader", "Reject", "readers"]
