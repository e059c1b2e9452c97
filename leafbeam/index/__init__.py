"""Tries of Semantic IDs, filters over their items, and versions of both."""

from leafbeam.index.bitmap import Bitmap
from leafbeam.index.build_estimate import BuildEstimate
from leafbeam.index.builder import TrieBuilder
from leafbeam.index.filters import Filter
from leafbeam.index.item_column import ItemColumn
from leafbeam.index.memory_estimate import MemoryEstimate
from leafbeam.index.saved_runs import SavedRuns
from leafbeam.index.shards import build_shards
from leafbeam.index.trie import Trie
from leafbeam.index.version import Segment, Version

__all__ = [
    "Bitmap",
    "BuildEstimate",
    "Filter",
    "ItemColumn",
    "MemoryEstimate",
    "SavedRuns",
    "Segment",
    "Trie",
    "TrieBuilder",
    "Version",
    "build_shards",
]
