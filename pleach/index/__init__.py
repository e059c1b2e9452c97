"""What may be returned: tries of Semantic IDs and filters over their items. numpy and numba alone."""

from pleach.index.bitmap import Bitmap
from pleach.index.builder import TrieBuilder
from pleach.index.filters import Filter
from pleach.index.trie import Trie
from pleach.index.version import Segment, Version, VersionFilter

__all__ = ["Bitmap", "Filter", "Segment", "Trie", "TrieBuilder", "Version", "VersionFilter"]
