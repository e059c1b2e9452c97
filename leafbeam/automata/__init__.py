"""Automata: any regular language over tokens as a constraint. Patterns and JSON Schemas need outlines-core."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.automata.automaton import Automaton
    from leafbeam.automata.token_trie import TokenTrie

__all__ = ["Automaton", "TokenTrie"]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
