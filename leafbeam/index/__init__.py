"""What may be returned: tries of Semantic IDs, filters over their items, automata over tokens. numpy and numba alone."""

from leafbeam.automata.automaton import Automaton
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.builder import TrieBuilder
from leafbeam.index.filters import Filter
from leafbeam.index.trie import Trie
from leafbeam.index.version import Segment, Version, VersionFilter

__all__ = ["Automaton", "Bitmap", "Filter", "Segment", "TokenTrie", "Trie", "TrieBuilder", "Version", "VersionFilter"]
