"""Tries of Semantic IDs, filters over their items, and versions of both."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.index.bitmap import Bitmap
    from leafbeam.index.builder import TrieBuilder
    from leafbeam.index.filters import Filter
    from leafbeam.index.memory_estimate import MemoryEstimate
    from leafbeam.index.trie import Trie
    from leafbeam.index.version import Segment, Version, VersionFilter

__all__ = ["Bitmap", "Filter", "MemoryEstimate", "Segment", "Trie", "TrieBuilder", "Version", "VersionFilter"]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
