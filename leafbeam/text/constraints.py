"""The constraints of generated texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from leafbeam.automata import Automaton, TokenTrie
from leafbeam.automata.arrays import AutomatonLimits, Limits, SizeLimits
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_notes import SchemaNote
from leafbeam.automata.json_schema import MAX_DEPTH, compile_schema
from leafbeam.automata.languages import concatenate, free_text
from leafbeam.automata.network import determinized
from leafbeam.automata.regex import compile_pattern
from leafbeam.automata.sources import choice_bytes
from leafbeam.errors import AutomatonError, counted, short_repr
from leafbeam.text.items import Items

MAX_PARTS = 256  # of a template in JSON, those of its templates included


@dataclass(frozen=True, kw_only=True)
class Regex:
    """The texts that a pattern matches as a whole.

    Args:
        pattern: The pattern, in the syntax of `Automaton.from_regex`.
    """

    pattern: str


@dataclass(frozen=True, kw_only=True)
class JsonSchema:
    """The instances of a JSON Schema.

    Args:
        schema: The schema, as an object or as JSON text, with the keywords of `Automaton.from_json_schema`.
        max_depth: How deeply lists and objects may nest in a value that the schema does not describe, and how often a schema
            may be inside itself.
        strict: Whether keywords that JSON Schema does not define are refused.
    """

    schema: Mapping[str, object] | bool | str
    max_depth: int = MAX_DEPTH
    strict: bool = False


@dataclass(frozen=True, kw_only=True)
class Choices:
    """One of several given texts.

    Args:
        texts: The texts. An empty list is an AutomatonError; it never allows everything.
    """

    texts: Sequence[str | bytes]


@dataclass(frozen=True, kw_only=True)
class FreeText:
    """Any text.

    Args:
        stop: The text with which the free text ends; it occurs only at the end.
        max_length: The largest number of characters, without the stop.
    """

    stop: str | None = None
    max_length: int | None = None


@dataclass(frozen=True, kw_only=True)
class Template:
    """Several parts, one after another. A part that is a string is fixed text.

    Args:
        parts: The parts. Free text needs a stop or a length, except as the last part. Items must be the last part.

    Examples:
        >>> Template(parts=[FreeText(stop="</think>", max_length=400), JsonSchema(schema=schema)])    # doctest: +SKIP
    """

    parts: "Sequence[str | Regex | JsonSchema | Choices | FreeText | Items | Template]"

    def flat(self) -> list[object]:
        """Return the parts, with each template replaced by its own parts.

        Raises:
            AutomatonError: If a part is invalid.
        """
        parts = self.parts
        if not hasattr(parts, "__len__") or isinstance(parts, str) or not len(parts):
            raise AutomatonError(f"the parts of a template are {parts!r}: expected a list of at least one")
        flat = [inner for part in parts for inner in (part.flat() if isinstance(part, Template) else [part])]
        if FreeText() in flat[:-1]:
            raise AutomatonError("free text in front of another part has no end: give it a stop or a max_length")
        if any(isinstance(part, Items) for part in flat[:-1]):
            raise AutomatonError("items stand in front of another part of a template: expected them as the last part")
        return flat


TextConstraint = Regex | JsonSchema | Choices | FreeText | Items | Template | Automaton


def compiled(constraint: TextConstraint, tokens: TokenTrie, **limits: Unpack[Limits]) -> Automaton:
    """Return the automaton of a constraint over a tokenizer's tokens, with its forced chains.

    Raises:
        AutomatonError: If the constraint is invalid or above a limit.
    """
    match constraint:
        case Automaton():
            return constraint
        case Regex(pattern=pattern):
            return Automaton.from_regex(pattern, tokens, compress=True, **limits)
        case JsonSchema(schema=schema, max_depth=depth, strict=strict):
            return Automaton.from_json_schema(schema, tokens, compress=True, max_depth=depth, strict=strict, **limits)
        case Choices(texts=texts):
            return Automaton.from_choices(texts, tokens, **limits)
        case FreeText():
            language = free_text(constraint.stop, constraint.max_length, AutomatonLimits(**limits).max_states)
            return Automaton.from_language(language, tokens, compress=True, **limits)
        case Items():
            return Automaton.from_sequences(constraint.sequences(), tokens.vocabulary_size, **_sizes(limits))
        case Template():
            *parts, last = constraint.flat()
            if not isinstance(last, Items):
                language, notes = _joined([*parts, last], **limits)
                return replace(Automaton.from_language(language, tokens, compress=True, **limits), notes=notes)
            items = compiled(last, tokens, **limits)
            if not parts:
                return items
            language, notes = _joined(parts, **limits)
            return replace(Automaton.from_language(language, tokens, **limits).then(items, **_sizes(limits)), notes=notes)
        case _:
            raise AutomatonError(
                f"the constraint is {constraint!r}: expected Regex, JsonSchema, Choices, FreeText, Items, Template or an "
                "Automaton"
            )


def _sizes(limits: Limits) -> SizeLimits:
    """Return the limits of an automaton without masks."""
    sizes = SizeLimits()
    if "max_states" in limits:
        sizes["max_states"] = limits["max_states"]
    if "max_bytes" in limits:
        sizes["max_bytes"] = limits["max_bytes"]
    return sizes


def _joined(parts: Sequence[object], **limits: Unpack[Limits]) -> tuple[ByteDFA, tuple[SchemaNote, ...]]:
    """Return the language of the texts that consist of one text of each part, in order, and the notes of its schemas."""
    notes: dict[SchemaNote, None] = {}
    languages = [_language(part, notes, **limits) for part in parts]
    return concatenate(languages, AutomatonLimits(**limits).max_states), tuple(notes)


def _language(part: object, notes: dict[SchemaNote, None], **limits: Unpack[Limits]) -> ByteDFA:
    """Return the language of a part of a template, and add the notes of a schema."""
    max_states = AutomatonLimits(**limits).max_states
    match part:
        case str():
            return ByteDFA.from_strings(choice_bytes([part]))
        case Regex(pattern=pattern):
            return compile_pattern(pattern, max_states)
        case JsonSchema(schema=schema, max_depth=depth, strict=strict):
            compiled_schema = compile_schema(schema, max_states, max_depth=depth, strict=strict)
            notes.update(dict.fromkeys(compiled_schema.notes))
            return determinized(compiled_schema.language)
        case Choices(texts=texts):
            return ByteDFA.from_strings(choice_bytes(texts))
        case FreeText(stop=stop, max_length=max_length):
            return free_text(stop, max_length, max_states)
        case _:
            raise AutomatonError(
                f"a part of a template is {part!r}: expected a string, Regex, JsonSchema, Choices, FreeText, Items or Template"
            )


def constraint_from_json(value: object) -> Regex | JsonSchema | Choices | FreeText | Template:
    """Return a constraint from JSON: an object with one of the keys regex, json_schema, choices, free_text and template.

    The value of regex is a pattern; of json_schema a schema, or its text; of choices a list of texts; of free_text an object
    with `stop` and `max_length`; of template a list of parts, each a text or such an object.

    Raises:
        AutomatonError: If the value is anything else.
    """
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in _READERS:
        raise AutomatonError(f"a constraint is {short_repr(value)}: expected an object with one of {', '.join(_READERS)}")
    ((kind, content),) = value.items()
    return _READERS[kind](content)


def _choices(content: object) -> Choices:
    if not isinstance(content, list) or not all(isinstance(text, str) for text in content):
        raise AutomatonError(f"choices is {short_repr(content)}: expected a list of texts")
    return Choices(texts=content)


def _free_text(content: object) -> FreeText:
    known = {"stop": str, "max_length": int}
    if not isinstance(content, Mapping) or not all(
        name in known and isinstance(value, known[name]) and not isinstance(value, bool) for name, value in content.items()
    ):
        raise AutomatonError(
            f"free_text is {short_repr(content)}: expected an object with stop, a text, or max_length, a number"
        )
    return FreeText(**content)


def _template(content: object) -> Template:
    if not isinstance(content, list):
        raise AutomatonError(f"template is {short_repr(content)}: expected a list of parts")
    num_parts = _num_parts(content)
    if num_parts > MAX_PARTS:
        raise AutomatonError(
            f"template has {counted(num_parts, 'part')}: expected at most {MAX_PARTS}; join neighbouring texts"
        )
    return Template(parts=[part if isinstance(part, str) else constraint_from_json(part) for part in content])


def _num_parts(content: object) -> int:
    """Return the number of parts of a template in JSON, including those of nested templates."""
    if not isinstance(content, list):
        return 1
    return sum(_num_parts(part["template"]) if isinstance(part, dict) and "template" in part else 1 for part in content)


_READERS: dict[str, Any] = {
    "regex": lambda content: Regex(pattern=content),  # checked where it is compiled
    "json_schema": lambda content: JsonSchema(schema=content),
    "choices": _choices,
    "free_text": _free_text,
    "template": _template,
}
