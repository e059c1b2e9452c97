"""What a generated text may be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leafbeam.automata import Automaton, TokenTrie


@dataclass(frozen=True, kw_only=True)
class Regex:
    """Texts that `pattern` matches as a whole. The syntax is that of `Automaton.from_regex`."""

    pattern: str


@dataclass(frozen=True, kw_only=True)
class JsonSchema:
    """Instances of a JSON Schema, as an object or as JSON text. The keywords are those of `Automaton.from_json_schema`."""

    schema: Mapping[str, Any] | str


@dataclass(frozen=True, kw_only=True)
class Choices:
    """One of some texts; an empty list is an AutomatonError, never "everything"."""

    texts: Sequence[str | bytes]


TextConstraint = Regex | JsonSchema | Choices | Automaton


def compiled(constraint: TextConstraint, tokens: TokenTrie) -> Automaton:
    """The automaton of a constraint over a tokenizer's tokens, with its forced chains. Raises AutomatonError."""
    match constraint:
        case Automaton():
            return constraint
        case Regex(pattern=pattern):
            return Automaton.from_regex(pattern, tokens, compress=True)
        case JsonSchema(schema=schema):
            return Automaton.from_json_schema(schema, tokens, compress=True)
        case Choices(texts=texts):
            return Automaton.from_choices(texts, tokens)
