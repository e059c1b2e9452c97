"""What may be returned: tries of Semantic IDs and filters over their items. numpy and numba alone."""

from pleach.index.bitmap import Bitmap
from pleach.index.filters import Filter
from pleach.index.trie import Trie

__all__ = ["Bitmap", "Filter", "Trie"]
