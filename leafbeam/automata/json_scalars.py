"""The languages of strings and numbers of a schema."""

from dataclasses import dataclass

from leafbeam.automata.boolean import difference, intersection
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_notes import Notes
from leafbeam.automata.json_numbers import integer_pattern, multiple_of, multiples, number_pattern, texts_of_number
from leafbeam.automata.json_scope import NOT_PATTERNS, NOT_VALUES, PATTERNS, Schema, Scope, span, type_of
from leafbeam.automata.json_strings import Strings, format_lengths, quoted_format
from leafbeam.automata.json_text import CHARACTER, FORMATS, REFUSED_FORMATS, STRING
from leafbeam.automata.network import END, START, Language, Network
from leafbeam.errors import AutomatonError, short_repr


@dataclass(frozen=True, kw_only=True)
class Scalars:
    """The compilation of strings and numbers.

    Args:
        strings: The languages of strings that are built already.
        max_states: The largest number of states of a language.
    """

    strings: Strings
    max_states: int
    notes: Notes

    def string(self, schema: Schema, scope: Scope) -> Language:
        try:
            return self._string(schema, scope)
        except AutomatonError as error:
            if error.pointer is not None:
                raise
            raise scope.error(f": {error}") from error

    def _string(self, schema: Schema, scope: Scope) -> Language:
        low, high = span(schema, "minLength", "maxLength", scope)
        if set(schema) <= {"type", "format", "minLength", "maxLength"} and schema.get("format") in (*FORMATS,):
            first, last = format_lengths(schema["format"])
            if low <= first and (high is None or (last is not None and last <= high)):
                return quoted_format(schema["format"], self.max_states)
        network = Network(self.max_states, pointer=lambda: scope.path)
        begin, end = network.node(), network.node()
        network.add_text(START, b'"', begin)
        network.add_text(end, b'"', END)
        if {"pattern", "format", NOT_PATTERNS, NOT_VALUES} & set(schema):
            values, text = self._values(schema, scope), None
            if low or high is not None:
                text = self.strings.counted(values, low, high)
                values = values if text is not None else self.strings.both(values, self.strings.of_length(low, high))
            if values.is_empty or (text is not None and text.is_empty):
                said = ", ".join(name for name in ("pattern", "format", "minLength", "maxLength", "not") if name in schema)
                raise scope.nothing(f" allows nothing: no text fits its {said or 'not'}")
            if text is None:
                network.add(begin, self.strings.escaped(values)[0], end)
            else:
                network.add_counted(begin, text, end)
        elif not low and high is None:
            return self.pattern(STRING, scope)
        else:
            network.add_repeated(begin, self.strings.compiled(CHARACTER), end, low, high)
        return network

    def string_values(self, schema: Schema, scope: Scope) -> ByteDFA:
        """Return the strings, not their texts, that the keywords of strings allow together."""
        low, high = span(schema, "minLength", "maxLength", scope)
        values = self._values(schema, scope)
        return self.strings.both(values, self.strings.of_length(low, high)) if low or high is not None else values

    def _values(self, schema: Schema, scope: Scope) -> ByteDFA:
        """Return the strings that all keywords but those of lengths allow."""
        strings, parts = self.strings, list[ByteDFA]()
        if "format" in schema:
            name = schema["format"]
            if not isinstance(name, str):
                raise scope.error(f" is {short_repr(name)}: expected the name of a format", "format")
            if name in REFUSED_FORMATS:
                raise scope.error(f" is {name!r}, which is not supported: use pattern", "format")
            if name in FORMATS:
                parts.append(strings.format(name))
            else:
                self.notes.ignored("format", scope, f"which is not among {', '.join(FORMATS)}: use pattern")
        patterns = [schema["pattern"]] if "pattern" in schema else []
        parts += [self.matching(pattern, scope.below("pattern")) for pattern in (*patterns, *schema.get(PATTERNS, ()))]
        language = parts[0] if parts else strings.all()
        for part in parts[1:]:
            language = strings.both(language, part)
        for pattern in schema.get(NOT_PATTERNS, ()):
            language = strings.without(language, self.matching(pattern, scope.below("not", "pattern")))
        if texts := [value for value in schema.get(NOT_VALUES, ()) if isinstance(value, str)]:
            language = strings.without(language, ByteDFA.from_strings([bytes_of(text, scope) for text in texts]))
        return strings.writable(language)

    def matching(self, pattern: object, scope: Scope) -> ByteDFA:
        if not isinstance(pattern, str):
            raise scope.error(f" is {short_repr(pattern)}: expected a pattern as text")
        try:
            return self.strings.matching(pattern)
        except AutomatonError as error:
            raise scope.error(f": {error}") from error

    def number(self, schema: Schema, scope: Scope, *, is_integer: bool) -> ByteDFA:
        multiple = multiple_of(schema, scope)
        excluded = [value for value in schema.get(NOT_VALUES, ()) if type_of(value) in ("integer", "number")]
        if is_integer or multiple is not None:
            language = self.pattern(integer_pattern(schema, scope), scope)
        else:
            language = self.pattern(number_pattern(schema, scope, exponents=not excluded), scope)
        if multiple is not None:
            language = intersection(language, multiples(multiple, scope), self.max_states)
        for value in excluded:
            language = difference(language, self.pattern(texts_of_number(value), scope), self.max_states)
        if not language.num_states:
            raise scope.nothing(" allows nothing: no number fits its bounds, multipleOf and not")
        return language

    def pattern(self, pattern: str, scope: Scope) -> ByteDFA:
        try:
            return self.strings.compiled(pattern)
        except AutomatonError as error:
            raise scope.error(f": {error}") from error


def bytes_of(text: str, scope: Scope) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise scope.error(f": {short_repr(text)} is not Unicode text: {error}") from error
