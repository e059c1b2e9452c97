"""Byte automata of the texts of a JSON Schema's instances; each is built from the automata of the schema's parts.

Every text of the language is JSON that the schema allows, and unsupported keywords are refused by name. The language has
only one form of each instance:

* only listed properties, in the order of the schema; one space may follow each comma and colon, and no other blanks;
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
from leafbeam.automata.json_numbers import integer_pattern, number_pattern
from leafbeam.automata.json_references import References, below
from leafbeam.automata.json_scope import (
    KEYWORDS,
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
from leafbeam.automata.json_text import CHARACTER, FORMATS
from leafbeam.automata.json_values import COLON, COMMA, add_list, add_texts, add_value
from leafbeam.automata.network import END, START, Network
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError, counted, short_repr
from leafbeam.json_reader import parse_json

_NOTES = frozenset(["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"])
_META = frozenset(("$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "$defs", "definitions"))
_FIXED = {"boolean": (b"true", b"false"), "null": (b"null",)}


def schema_language(schema: Schema | str, max_states: int) -> ByteDFA:
    """Return the language of the texts of a schema's instances.

    schema: a mapping or its JSON text. Types string (minLength, maxLength, a format of `FORMATS`; or `pattern`, with ^ and $
    around the whole and no character that JSON would have to escape), integer and number (bounds), boolean, null, array (items,
    prefixItems, minItems, maxItems), object (properties, required; or additionalProperties with a schema, maxProperties); lists
    of types; enum, const, anyOf, oneOf of visibly exclusive schemas, allOf of one, $ref into the schema without recursion.

    Raises AutomatonError with the JSON pointer for anything else, and above `max_states`; MissingExtraError without
    outlines-core. Cost: linear in the automata of all parts.
    """
    try:
        if isinstance(schema, str):
            schema = _parsed(schema)
        references = References(schema)
        return _Compiler(references=references, max_states=max_states).language(schema, Scope())
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
    built: dict[tuple[str, str], ByteDFA] = field(default_factory=dict[tuple[str, str], ByteDFA])

    def language(self, schema: object, scope: Scope) -> ByteDFA:
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
        keywords = set(schema) - _NOTES - _META
        for combine in ("$ref", "anyOf", "oneOf", "allOf"):
            if combine in keywords:
                check_keywords(keywords, {combine}, scope, f"beside {combine}")
                return self._combined(combine, schema[combine], scope)
        types = types_of(schema, scope)
        if "enum" in keywords or "const" in keywords:
            return self._values(schema, keywords, types, scope)
        if not types:
            listed = f" (it has {', '.join(sorted(keywords))})" if keywords else ""
            raise scope.error(f" has no type, so it allows any value{listed}: say which, with type, enum, const or anyOf")
        check_keywords(keywords, {"type"}.union(*(KEYWORDS[name] for name in types)), scope, f"for type {schema['type']!r}")
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

    def _values(self, schema: Schema, keywords: set[str], types: list[str], scope: Scope) -> ByteDFA:
        """Return the values of an enum or const that have an allowed type, or all values if no types are named."""
        name = "enum" if "enum" in keywords else "const"
        check_keywords(keywords, {name, "type"}, scope, "beside enum or const")
        values = list_of(schema["enum"], scope.below("enum")) if name == "enum" else [schema["const"]]
        network, num_allowed = self._network(scope), 0
        for number, value in enumerate(values):
            kind = type_of(value)
            if not types or kind in types or (kind == "integer" and "number" in types):
                part_scope = scope.below("enum", number) if name == "enum" else scope.below("const")
                add_value(network, START, value, END, part_scope)
                num_allowed += 1
        if not num_allowed:
            raise scope.error(f" allows nothing: no value of its {name} is of type {schema['type']!r}")
        return network.language()

    def _combined(self, combine: str, value: object, scope: Scope) -> ByteDFA:
        if combine == "$ref":
            location = self.references.resolved(value, below(scope.path, "$ref"), scope.base)
            if id(location.schema) in scope.open_refs:
                raise scope.error(f": {value} leads back to itself, and no regular language nests without end", "$ref")
            open_refs = (*scope.open_refs, id(location.schema))
            return self.language(location.schema, Scope(path=location.path, base=location.base, open_refs=open_refs))
        inner = scope.below(combine)
        parts = list_of(value, inner)
        if combine == "allOf" and len(parts) > 1:
            raise inner.error(f" joins {counted(len(parts), 'schema')}: expected one; write their keywords into one schema")
        if combine == "oneOf" and not self._exclusive(parts, inner):
            raise inner.error(
                ": expected alternatives of different types, or objects that require one property with different values "
                "(const or enum); where at most one can hold anyway, use anyOf"
            )
        network = self._network(inner)
        for number, part in enumerate(parts):
            network.add(START, self.language(part, inner.below(number)), END)
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
        first = list_of(schema["prefixItems"], scope.below("prefixItems")) if "prefixItems" in schema else []
        parts = [self.language(part, scope.below("prefixItems", number)) for number, part in enumerate(first)]
        items = schema.get("items", False)
        if items is False:
            high = len(parts) if high is None else min(high, len(parts))
            if "items" not in schema and not parts:
                raise scope.error(" does not say what its items are: add items or prefixItems")
            if low > high:
                raise scope.error(f" allows {counted(high, 'item')} and requires {low}: add items")
        network = self._network(scope)
        rest = None if items is False else self.language(items, scope.below("items"))

        def add(number: int, node: int, to: int) -> None:
            part = parts[number] if number < len(parts) else rest
            assert part is not None
            network.add(node, part, to)

        add_list(network, b"[]", add, low, high, max(len(parts) + 1, low))
        return network.language()

    def _object(self, schema: Schema, scope: Scope) -> ByteDFA:
        properties = mapping_of(schema.get("properties", {}), scope.below("properties"))
        required = names_of(schema.get("required", []), scope.below("required"))
        others = schema.get("additionalProperties")
        if unknown := [name for name in required if name not in properties]:
            raise scope.error(f" requires {unknown[0]!r}, which is not among its properties: add it")
        if isinstance(others, Mapping) and not properties:
            return self._map(schema, others, scope)
        if isinstance(others, Mapping) or "maxProperties" in schema:
            raise scope.error(": additionalProperties with a schema and maxProperties go without properties")
        if not properties and others is not False:
            raise scope.error(" does not say what its properties are: add properties, or a schema for them all")
        network, must = self._network(scope), set(required)
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

    def _map(self, schema: Schema, others: Schema, scope: Scope) -> ByteDFA:
        """Join two nodes by objects with any names and values of one schema."""
        names, values = self._pattern(f'"{CHARACTER}*"', scope), self.language(others, scope.below("additionalProperties"))
        network = self._network(scope)

        def add(number: int, node: int, to: int) -> None:
            colon, value = network.node(), network.node()
            network.add(node, names, colon)
            add_texts(network, colon, COLON, value)
            network.add(value, values, to)

        add_list(network, b"{}", add, 0, span(schema, "minProperties", "maxProperties", scope)[1], 1)
        return network.language()


def _ends_with_dollar(pattern: str) -> bool:
    """Return whether a pattern ends with a `$` that no backslash escapes."""
    before = pattern[:-1]
    return len(pattern) > 1 and pattern.endswith("$") and (len(before) - len(before.rstrip("\\"))) % 2 == 0
