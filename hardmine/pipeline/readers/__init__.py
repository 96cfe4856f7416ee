"""Dataset layouts, one file each, found by name."""

from hardmine.pipeline.readers.base import Candidates, Pair, Picture, Reader, Reject, readers

__all__ = ["Candidates", "Pair", "Picture", "Reader", "Reject", "readers"]
