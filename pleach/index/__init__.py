"""What may be returned: tries of Semantic IDs, filters over their items, automata over tokens. numpy and numba alone."""

from pleach.index.automaton import Automaton
from pleach.index.bitmap import Bitmap
from pleach.index.builder import TrieBuilder
from pleach.index.filters import Filter
from pleach.index.tokens import TokenTrie
from pleach.index.trie import Trie
from pleach.index.version import Segment, Version, VersionFilter

__all__ = ["Automaton", "Bitmap", "Filter", "Segment", "TokenTrie", "Trie", "TrieBuilder", "Version", "VersionFilter"]
