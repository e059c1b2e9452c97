"""Byte automata of the texts of a JSON Schema's instances; each is built from the automata of the schema's parts.

Every text of the language is JSON that the schema allows, and unsupported keywords are refused by name. The language has
only one form of each instance:

* only listed properties where there are any, in the order of the schema;
* one space may follow each comma and colon, and there are no other blanks;
* strings use the short escapes (\\n, \\t, \\\\ and similar ones) and never `\\u`;
* numbers between bounds have no exponent, and a few digits behind those of the bounds;
* among the formats, a "uri" is an HTTP address, and names of hosts and mailboxes are ASCII.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.ecma_pattern import rust_pattern
from leafbeam.automata.json_merge import distributed, merged
from leafbeam.automata.json_numbers import integer_pattern, number_pattern
from leafbeam.automata.json_references import Location, References, below
from leafbeam.automata.json_scope import (
    KNOWN,
    NOTES,
    Schema,
    Scope,
    check_keywords,
    list_of,
    mapping_of,
    names_of,
    span,
    type_of,
    types_of,
)
from leafbeam.automata.json_text import CHARACTER, FORMATS, NUMBER
from leafbeam.automata.json_values import COLON, COMMA, add_list, add_texts, add_value, text_of
from leafbeam.automata.network import END, START, Network
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError, counted, short_repr
from leafbeam.json_reader import parse_json

MAX_DEPTH = 3
_ANYTHING = "(?s:.*)"
_FIXED = {"boolean": (b"true", b"false"), "null": (b"null",)}


def schema_language(
    schema: Schema | bool | str, max_states: int, *, max_depth: int = MAX_DEPTH, strict: bool = False
) -> ByteDFA:
    """Return the language of the texts of a schema's instances.

    Supported are types, string (minLength, maxLength; a format of `FORMATS`; or `pattern`, with ^ and $ around the whole and no
    character that JSON would have to escape), integer and number (bounds), boolean, null, array (items, prefixItems, minItems,
    maxItems), object (properties, required, additionalProperties, minProperties, maxProperties), enum, const, anyOf, oneOf of
    visibly exclusive schemas, allOf, $ref into the schema without recursion, and keywords beside these. What a schema does not
    restrict may be any JSON value. Keywords that JSON Schema does not define, and those of other types, say nothing.

    Args:
        schema: The schema, or its JSON text.
        max_states: The largest number of states of the language.
        max_depth: How deeply lists and objects may nest in a value that the schema does not describe.
        strict: Whether keywords that JSON Schema does not define are refused.

    Raises:
        AutomatonError: For keywords that are not supported, with the JSON pointer, and above `max_states`.
        MissingExtraError: If outlines-core is not installed.
    """
    if max_depth < 0:
        raise AutomatonError(f"max_depth is {max_depth}: expected 0 or more")
    try:
        if isinstance(schema, str):
            schema = _parsed(schema)
        references = References(schema)
        compiler = _Compiler(references=references, max_states=max_states, max_depth=max_depth, strict=strict)
        return compiler.language(schema, Scope())
    except RecursionError as error:
        raise AutomatonError("the schema nests too deeply: expected at most a few hundred levels") from error


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:  # JSON's own, and that of integers with thousands of digits
        raise AutomatonError(f"the schema is not JSON: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Compiler:
    """A compilation of one schema.

    Args:
        built: The automata of parts by base and text, and of patterns. Equal parts are built once.
    """

    references: References
    max_states: int
    max_depth: int
    strict: bool
    built: dict[tuple[str, str], ByteDFA] = field(default_factory=dict[tuple[str, str], ByteDFA])

    def language(self, schema: object, scope: Scope) -> ByteDFA:
        if schema is True:
            return self._any(self.max_depth)
        if schema is False:
            raise scope.error(" is false and allows nothing")
        schema = mapping_of(schema, scope)
        base = self.references.inside(schema, scope.path, scope.base)
        scope = Scope(path=scope.path, base=base, open_refs=scope.open_refs)
        try:
            key = "schema of " + base, json.dumps(schema)
        except (TypeError, ValueError):  # values that JSON does not have: the part that holds them is refused later
            return self._language(schema, scope)
        if key not in self.built:
            self.built[key] = self._language(schema, scope)
        return self.built[key]

    def _language(self, schema: Schema, scope: Scope) -> ByteDFA:
        schema = self._without_notes(schema, scope)
        if set(schema) == {"$ref"}:
            location, open_refs = self._referred(schema["$ref"], scope)
            return self.language(location.schema, Scope(path=location.path, base=location.base, open_refs=open_refs))
        if "$ref" in schema or "allOf" in schema:
            parts, scope = self._parts(schema, scope)
            schema = merged(parts, scope)
        schema = _without_draft_4(schema)
        if (alternatives := distributed(schema, scope)) is not None:
            return self._alternatives(*alternatives, schema, scope)
        types = types_of(schema, scope) or ["null", "boolean", "number", "string", "array", "object"]
        check_keywords(schema, types, scope)
        if "enum" in schema or "const" in schema:
            return self._values(schema, scope)
        if not set(schema):
            return self._any(self.max_depth)
        compilers: dict[str, Callable[[Schema, Scope], ByteDFA]] = {
            "string": self._string,
            "integer": lambda schema, scope: self._pattern(integer_pattern(schema, scope), scope),
            "number": lambda schema, scope: self._pattern(number_pattern(schema, scope), scope),
            "array": self._array,
            "object": self._object,
        }
        network = self._network(scope)
        for name in types:
            for text in _FIXED.get(name, ()):
                network.add_text(START, text, END)
            if name in compilers:
                network.add(START, compilers[name](schema, scope), END)
        return network.language()

    def _without_notes(self, schema: Schema, scope: Scope) -> Schema:
        """Return the keywords that restrict instances. With `strict`, others than notes are refused."""
        if self.strict and (unknown := sorted(set(schema) - KNOWN)):
            said = f"{scope.path} has {', '.join(unknown)}, which JSON Schema does not define"
            raise AutomatonError(said, pointer=below(scope.path, unknown[0]))
        return {name: value for name, value in schema.items() if name in KNOWN - NOTES}

    def _referred(self, reference: Any, scope: Scope) -> tuple[Location, tuple[int, ...]]:
        """Return the schema that a `$ref` leads to, and all that are open then."""
        location = self.references.resolved(reference, below(scope.path, "$ref"), scope.base)
        if id(location.schema) in scope.open_refs:
            raise scope.error(f": {reference} leads back to itself, and no regular language nests without end", "$ref")
        return location, (*scope.open_refs, id(location.schema))

    def _parts(self, schema: Schema, scope: Scope) -> tuple[list[Schema], Scope]:
        """Return the schemas that hold together: what `$ref` and `allOf` lead to, and the keywords beside them."""
        parts: list[Schema] = []
        own = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
        waiting: list[tuple[Any, Scope]] = []
        if "$ref" in schema:
            location, open_refs = self._referred(schema["$ref"], scope)
            waiting.append((location.schema, Scope(path=location.path, base=location.base, open_refs=open_refs)))
            scope = Scope(path=scope.path, base=scope.base, open_refs=open_refs)
        if "allOf" in schema:
            inner = scope.below("allOf")
            waiting += [(part, inner.below(number)) for number, part in enumerate(list_of(schema["allOf"], inner))]
        for part, at in waiting:
            if part is True:
                continue
            part = mapping_of(part, at)
            if self.references.inside(part, at.path, at.base) != scope.base:
                raise at.error(" has an $id of its own and is joined with other schemas: leave out the $id")
            part, outer = _without_draft_4(self._without_notes(part, at)), at
            if "$ref" in part or "allOf" in part:
                more, outer = self._parts(part, at)
                parts += more
            else:
                parts.append(part)
            open_refs = tuple(dict.fromkeys((*scope.open_refs, *outer.open_refs)))
            scope = Scope(path=scope.path, base=scope.base, open_refs=open_refs)
        return [_without_draft_4(own), *parts], scope

    def _any(self, depth: int) -> ByteDFA:
        """Return the language of all JSON values in which lists and objects nest at most so deeply."""
        key = "any", str(depth)
        if key not in self.built:
            scope = Scope()
            network = self._network(scope)
            for texts in _FIXED.values():
                add_texts(network, START, texts, END)
            for pattern in (NUMBER, f'"{CHARACTER}*"'):
                network.add(START, self._pattern(pattern, scope), END)
            if depth:
                network.add(START, self._list(self._any(depth - 1)), END)
                network.add(START, self._map(self._any(depth - 1), 0, None), END)
            self.built[key] = network.language()
        return self.built[key]

    def _network(self, scope: Scope) -> Network:
        return Network(self.max_states, scope.path, pointer=scope.path)

    def _pattern(self, pattern: str, scope: Scope) -> ByteDFA:
        key = "pattern", pattern
        if key not in self.built:
            try:
                self.built[key] = compile_pattern(pattern, self.max_states)
            except AutomatonError as error:
                raise scope.error(f": {error}") from error
        return self.built[key]

    def _values(self, schema: Schema, scope: Scope) -> ByteDFA:
        """Return the values of an enum or const that the keywords beside it allow."""
        name = "enum" if "enum" in schema else "const"
        values = list_of(schema["enum"], scope.below("enum")) if name == "enum" else [schema["const"]]
        if name == "enum" and "const" in schema:
            raise scope.error(" has enum and const: expected one of them")
        types = types_of(schema, scope)
        beside = {key: value for key, value in schema.items() if key not in (name, "type")}
        network, num_allowed = self._network(scope), 0
        for number, value in enumerate(values):
            kind = type_of(value)
            if not types or kind in types or (kind == "integer" and "number" in types):
                part_scope = scope.below("enum", number) if name == "enum" else scope.below("const")
                text = text_of(value, part_scope)
                if beside and not self._language({**beside, "type": kind}, scope).accepts(text):
                    continue
                add_value(network, START, value, END, part_scope)
                num_allowed += 1
        if not num_allowed:
            said = f"is of type {schema['type']!r}" if not beside else f"fits {', '.join(sorted(beside))}"
            raise scope.error(f" allows nothing: no value of its {name} {said}")
        return network.language()

    def _alternatives(self, name: str, parts: list[Any], schema: Schema, scope: Scope) -> ByteDFA:
        """Return what one of several schemas allows."""
        inner = scope.below(name)
        if name == "oneOf" and not self._exclusive(schema["oneOf"], inner):
            raise inner.error(
                ": expected alternatives of different types, or objects that require one property with different values "
                "(const or enum); where at most one can hold anyway, use anyOf"
            )
        network, num_allowed = self._network(inner), 0
        for number, part in enumerate(parts):
            if part is not False:
                network.add(START, self.language(part, inner.below(number)), END)
                num_allowed += 1
        if not num_allowed:
            raise inner.error(" allows nothing")
        return network.language()

    def _exclusive(self, parts: Sequence[object], scope: Scope) -> bool:
        """Return whether at most one of the alternatives can hold: by type, or by one property with distinct values."""
        schemas = [mapping_of(part, scope.below(number)) for number, part in enumerate(parts)]
        schemas = [
            mapping_of(self.references.resolved(part["$ref"], scope.path, scope.base).schema, scope) if "$ref" in part else part
            for part in schemas
        ]
        families = [{"number" if name == "integer" else name for name in types_of(schema, scope)} for schema in schemas]
        if all(families) and sum(map(len, families)) == len(set[str]().union(*families)):
            return True
        names = [
            set(names_of(schema.get("required", []), scope)) & set(mapping_of(schema.get("properties", {}), scope))
            for schema in schemas
        ]
        for name in set[str].intersection(*names) if all(family == {"object"} for family in families) else ():
            tags = [schema["properties"][name] for schema in schemas]
            values = [tag.get("enum", [tag["const"]] if "const" in tag else None) for tag in tags if isinstance(tag, Mapping)]
            flat = [value for group in values if isinstance(group, list) for value in group]
            distinct = all(values) and len(values) == len(schemas) and all(isinstance(value, str) for value in flat)
            if distinct and len(flat) == len(set(flat)):
                return True
        return False

    def _string(self, schema: Schema, scope: Scope) -> ByteDFA:
        low, high = span(schema, "minLength", "maxLength", scope)
        present = {"pattern", "format", "minLength", "maxLength"} & set(schema)
        if len(present - {"minLength", "maxLength"}) and len(present) > 1:
            raise scope.error(f" has {' and '.join(sorted(present))}: expected one of pattern, format or length bounds")
        if "format" in schema:
            if not isinstance(schema["format"], str) or schema["format"] not in FORMATS:
                said = f": format {short_repr(schema['format'])} is not among {', '.join(FORMATS)}: use pattern"
                raise scope.error(said, "format")
            return self._pattern(f'"{FORMATS[schema["format"]]}"', scope)
        if "pattern" in schema:
            return self._pattern(f'"(?:{self._pattern_of(schema["pattern"], scope.below("pattern"))})"', scope)
        return self._pattern(f'"{CHARACTER}{{{low},{"" if high is None else high}}}"', scope)

    def _pattern_of(self, pattern: object, scope: Scope) -> str:
        if not isinstance(pattern, str) or not pattern.startswith("^") or not _ends_with_dollar(pattern):
            raise scope.error(
                f": the pattern is {short_repr(pattern)}: expected ^...$ (without them it would allow anything around a match)"
            )
        try:
            inner = rust_pattern(pattern[1:-1])
        except AutomatonError as error:
            raise scope.error(f": {error}") from error
        used_256 = self._pattern(inner, scope).used_256
        if used_256[[*range(32), ord('"'), ord("\\")]].any():
            raise scope.error(
                f": the pattern {short_repr(pattern)} allows a quote, a backslash or a control character, which JSON writes as "
                'an escape: leave them out, for example with [^"\\\\\\x00-\\x1f] in place of a dot'
            )
        return inner

    def _array(self, schema: Schema, scope: Scope) -> ByteDFA:
        low, high = span(schema, "minItems", "maxItems", scope)
        given, first_name = schema.get("items"), "prefixItems"
        if isinstance(given, list):  # before draft 2020-12
            if not given or "prefixItems" in schema or "additionalItems" in schema:
                raise scope.error(" is a list: expected a schema, and the first items in prefixItems", "items")
            first, first_name, given = given, "items", False
        else:
            first = list_of(schema["prefixItems"], scope.below("prefixItems")) if "prefixItems" in schema else []
        parts = [self.language(part, scope.below(first_name, number)) for number, part in enumerate(first)]
        items = given if given is not None else not parts
        if items is False:
            high = len(parts) if high is None else min(high, len(parts))
            if low > high:
                raise scope.error(f" allows {counted(high, 'item')} and requires {low}: add items")
        network = self._network(scope)
        rest = None if items is False else self.language(items, scope.below("items")) if given is not None else self._inner

        def add(number: int, node: int, to: int) -> None:
            part = parts[number] if number < len(parts) else rest
            assert part is not None
            network.add(node, part, to)

        add_list(network, b"[]", add, low, high, max(len(parts) + 1, low))
        return network.language()

    @property
    def _inner(self) -> ByteDFA:
        """The values in a list or object that says nothing about them."""
        return self._any(max(0, self.max_depth - 1))

    def _object(self, schema: Schema, scope: Scope) -> ByteDFA:
        properties = dict(mapping_of(schema.get("properties", {}), scope.below("properties")))
        required = names_of(schema.get("required", []), scope.below("required"))
        others = schema.get("additionalProperties", True)
        low, high = span(schema, "minProperties", "maxProperties", scope)
        for name in required:
            if name not in properties:
                if others is False:
                    raise scope.error(f" requires {name!r}, which is not among its properties: add it")
                properties[name] = others
            if properties[name] is False:
                raise scope.error(f" allows nothing: it requires {name!r}, which is false")
        properties = {name: part for name, part in properties.items() if part is not False}
        self._check_patterns(schema, properties, scope)
        if not properties and others is not False and "properties" not in schema:
            values = self._inner if others is True else self.language(others, scope.below("additionalProperties"))
            if low > 1:
                raise scope.error(f" is {low}: expected 0 or 1, because names may be repeated", "minProperties")
            return self._map(values, low, high)
        if low > len(set(required)) or (high is not None and high < len(properties)):
            wanted = f"minProperties {low}, maxProperties {'none' if high is None else high}"
            raise scope.error(
                f" has {wanted}: expected numbers that its {counted(len(properties), 'property', 'properties')}, "
                f"{len(set(required))} of them required, always meet"
            )
        return self._fixed(properties, set(required), scope)

    def _check_patterns(self, schema: Schema, properties: Schema, scope: Scope) -> None:
        """Raise AutomatonError unless patternProperties are about other names than those that may be written."""
        patterns = mapping_of(schema.get("patternProperties", {}), scope.below("patternProperties"))
        if patterns and not properties:
            raise scope.error(" has patternProperties: expected properties, whose names do not match")
        for pattern in map(str, patterns):
            at = scope.below("patternProperties", pattern)
            begins, ends = pattern.startswith("^"), _ends_with_dollar(pattern)
            inner = pattern[begins : len(pattern) - ends]
            if "|" in pattern:
                raise at.error(": expected a pattern without |")
            try:
                dfa = self._pattern(f"{'' if begins else _ANYTHING}(?:{rust_pattern(inner)}){'' if ends else _ANYTHING}", at)
            except AutomatonError as error:
                raise at.error(f": {error}") from error
            if matching := [name for name in properties if dfa.accepts(name.encode())]:
                raise at.error(f" matches the property {matching[0]!r}: expected patterns of other names")

    def _fixed(self, properties: Schema, must: set[str], scope: Scope) -> ByteDFA:
        """Return the objects of listed properties, in their order."""
        network = self._network(scope)
        # `keys[number]` comes before the names of property `number` and later ones; skipping an optional one takes no byte.
        keys = [network.node() for _ in range(len(properties) + 1)]
        may_end = True
        for number, (name, part) in reversed(list(enumerate(properties.items()))):
            part_scope = scope.below("properties", name)
            colon, value, done = network.node(), network.node(), network.node()
            add_value(network, keys[number], str(name), colon, part_scope)
            add_texts(network, colon, COLON, value)
            network.add(value, self.language(part, part_scope), done)
            add_texts(network, done, COMMA, keys[number + 1])
            if may_end:
                network.add_text(done, b"}", END)
            if name in must:
                may_end = False
            else:
                network.skip(keys[number], keys[number + 1])
        network.add_text(START, b"{", keys[0])
        if may_end:
            network.add_text(START, b"{}", END)
        return network.language()

    def _list(self, values: ByteDFA) -> ByteDFA:
        """Return the lists of values of one language."""
        network = self._network(Scope())
        add_list(network, b"[]", lambda _, node, to: network.add(node, values, to), 0, None, 1)
        return network.language()

    def _map(self, values: ByteDFA, low: int, high: int | None) -> ByteDFA:
        """Return the objects with any names and values of one language."""
        scope = Scope()
        network, names = self._network(scope), self._pattern(f'"{CHARACTER}*"', scope)

        def add(number: int, node: int, to: int) -> None:
            colon, value = network.node(), network.node()
            network.add(node, names, colon)
            add_texts(network, colon, COLON, value)
            network.add(value, values, to)

        add_list(network, b"{}", add, low, high, max(1, low))
        return network.language()


def _without_draft_4(schema: Schema) -> Schema:
    """Return a schema whose exclusive bounds are numbers; in draft 4 they say whether `minimum` and `maximum` are."""
    result = dict(schema)
    for name, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if result.get(exclusive) is False:
            del result[exclusive]
        elif result.get(exclusive) is True and name in result:
            result[exclusive] = result.pop(name)
    return result


def _ends_with_dollar(pattern: str) -> bool:
    """Return whether a pattern ends with a `$` that no backslash escapes."""
    before = pattern[:-1]
    return len(pattern) > 1 and pattern.endswith("$") and (len(before) - len(before.rstrip("\\"))) % 2 == 0
