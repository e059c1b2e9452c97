"""Automata: any regular language over tokens as a constraint. Patterns and JSON Schemas need outlines-core."""

from typing import TYPE_CHECKING

from leafbeam.extras import lazy_exports

if TYPE_CHECKING:
    from leafbeam.automata.automaton import Automaton
    from leafbeam.automata.token_trie import TokenTrie

__all__ = ["Automaton", "TokenTrie"]

__getattr__, __dir__ = lazy_exports(__name__, {"Automaton": ".automaton", "TokenTrie": ".token_trie"})
