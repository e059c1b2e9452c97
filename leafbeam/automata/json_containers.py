"""The languages of arrays and objects of a schema, made of those of their parts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_merge import merged, same
from leafbeam.automata.json_negation import negation
from leafbeam.automata.json_normal import Normaliser
from leafbeam.automata.json_objects import Members, add_object
from leafbeam.automata.json_presence import all_present
from leafbeam.automata.json_scalars import Scalars, bytes_of
from leafbeam.automata.json_scope import CLAUSES, CONTAINS, Schema, Scope, list_of, mapping_of, names_of, span
from leafbeam.automata.json_values import add_counted_list, add_list, counted_list, unique_list
from leafbeam.automata.network import Language, Network, determinized
from leafbeam.errors import counted, short_repr

_MAX_TEXTS = 1_000  # of the values of a list without repetitions
_MAX_GROUPS = 32
_MAX_WRITTEN_ITEMS = 4  # of a list; more are counted


@dataclass(frozen=True, kw_only=True)
class Containers:
    """The compilation of arrays and objects.

    Args:
        language: Returns the language of a part, which is empty if the part allows nothing.
        inner: Returns the language of the values in a list or object that says nothing about them.
    """

    language: Callable[[object, Scope], Language]
    inner: Callable[[Scope], ByteDFA]
    network: Callable[[Scope], Network]
    normaliser: Normaliser
    scalars: Scalars

    def arrays(self, schema: Schema, scope: Scope) -> Language:
        low, high = span(schema, "minItems", "maxItems", scope)
        first, first_name, items = self._items_of(schema, scope)
        if counts := self._counts(schema, scope):
            return self._counted(first, first_name, items, (low, high), counts, scope)
        parts = [self.language(part, scope.below(first_name, number)) for number, part in enumerate(first)]
        if not isinstance(schema.get("uniqueItems", False), bool):
            raise scope.error(f" is {short_repr(schema['uniqueItems'])}: expected true or false", "uniqueItems")
        if schema.get("uniqueItems") and (high is None or high > 1):
            return self._unique(parts, items, low, high, scope)
        rest = None
        if items is not False:
            rest = (
                self.inner(scope)
                if items is None or items == {} or items is True
                else self.language(items, scope.below("items"))
            )
            rest = None if rest.is_empty else rest
        if rest is None:
            high = len(parts) if high is None else min(high, len(parts))
            if low > high:
                raise scope.nothing(f" allows nothing: it allows {counted(high, 'item')} and requires {low}: add items")
        network = self.network(scope)
        if rest is not None and max(low, high or 0) > len(parts) + _MAX_WRITTEN_ITEMS:
            return counted_list(network, parts, rest, low, high)

        def add(number: int, node: int, to: int) -> None:
            part = parts[number] if number < len(parts) else rest
            assert part is not None
            network.add(node, part, to)

        add_list(network, b"[]", add, low, high, max(len(parts) + 1, low))
        return network

    def _items_of(self, schema: Schema, scope: Scope) -> tuple[list[object], str, object]:
        """Return (the schemas of the first items, the keyword that has them, the schema of others; None if nothing is said)."""
        given, name = schema.get("items"), "prefixItems"
        first = schema.get("prefixItems", [])
        if isinstance(given, list):  # before draft 2020-12
            if "prefixItems" in schema:
                raise scope.error(" is a list beside prefixItems: expected a schema", "items")
            first, name, given = given, "items", schema.get("additionalItems")
        if first != [] or name in schema:
            first = list_of(first, scope.below(name))
        if given is None and first:
            given = False  # more items would be valid, and are not written
        return first, name, given

    def _counts(self, schema: Schema, scope: Scope) -> tuple[object, int, int | None] | None:
        """Return what some items have to match, and how many of them must and may; None if there is no such bound."""
        counts: list[tuple[object, int, int | None]] = []
        for part, low, high in schema.get(CONTAINS, ()):
            if (low or high is not None) and (part, low, high) not in counts:
                counts.append((part, low, high))
        if len(counts) > 1:
            raise scope.error(" joins two schemas with different contains: write them into one")
        if counts and schema.get("uniqueItems"):
            raise scope.error(" is true beside contains: expected one of them", "uniqueItems")
        return counts[0] if counts else None

    def _counted(
        self,
        first: Sequence[object],
        first_name: str,
        items: object,
        bounds: tuple[int, int | None],
        counts: tuple[object, int, int | None],
        scope: Scope,
    ) -> Language:
        """Return the arrays of which a number of items matches a schema."""
        part, low_matching, high_matching = counts
        low, high = bounds
        high = high if items is not False else len(first) if high is None else min(high, len(first))
        loop = max(len(first) + 1, low)
        built: dict[tuple[int, bool], Language] = {}

        def item(number: int, is_match: bool) -> Language:
            number = min(number, len(first))
            if (number, is_match) not in built:
                own, at = (
                    (first[number], scope.below(first_name, number)) if number < len(first) else (items, scope.below("items"))
                )
                is_open = own is None or own is True or own == {}
                others = [part] if is_match else [] if high_matching is None else [negation(part)]
                at = scope.below("contains") if others else at
                joined = (
                    self.inner(scope) if is_open and not others else self._joined([*([] if is_open else [own]), *others], at)
                )
                built[number, is_match] = joined
            return built[number, is_match]

        network = self.network(scope)
        add_counted_list(network, item, (low, high, loop), (low_matching, high_matching))
        if network.is_empty:
            raise scope.nothing(" allows nothing: no list has as many items that match contains as it requires")
        return network

    def _unique(self, parts: Sequence[Language], items: object, low: int, high: int | None, scope: Scope) -> Language:
        """Return the lists of different values of a finite language, in the order of their texts."""
        values = None if parts or items is None or items is False else determinized(self.language(items, scope.below("items")))
        texts = None if values is None else values.strings(_MAX_TEXTS)
        if texts is None:
            raise scope.error(" is true, and the items are not of a few values: expected items with an enum", "uniqueItems")
        distinct: list[tuple[object, list[bytes]]] = []
        for text in texts:
            value = json.loads(text)
            known = next((texts for other, texts in distinct if same(value, other)), None)
            if known is None:
                distinct.append((value, [text]))
            else:
                known.append(text)
        languages = [ByteDFA.from_strings(texts) for _, texts in distinct]
        language = unique_list(self.network(scope), languages, low, high)
        if language.is_empty:
            raise scope.nothing(f" allows nothing: it requires {low} of {counted(len(languages), 'value')}")
        return language

    def objects(self, schema: Schema, scope: Scope) -> Language:
        properties = dict(mapping_of(schema.get("properties", {}), scope.below("properties")))
        required = names_of(schema.get("required", []), scope.below("required"))
        low, high = span(schema, "minProperties", "maxProperties", scope)
        patterns = self._name_patterns(schema, scope)
        clauses = frozenset(frozenset((name, present) for name, present in clause) for clause in schema.get(CLAUSES, ()))
        clauses |= all_present(required)
        others = schema.get("additionalProperties", True)
        is_written = isinstance(others, Mapping) or (not properties and (not patterns or "additionalProperties" in schema))
        names = self._names(schema, scope)
        for name in dict.fromkeys([*required, *(name for clause in schema.get(CLAUSES, ()) for name, _ in clause)]):
            properties.setdefault(name, None)
        listed: dict[str, Language] = {}
        for name, part in properties.items():
            text = bytes_of(name, scope)
            matching = [value for strings, value in patterns if strings.accepts(text)]
            own = [part] if part is not None else [] if matching else [others]
            is_allowed = names is None or names.accepts(text)
            listed[name] = self._joined([*own, *matching] if is_allowed else [False], scope.below("properties", name))
        if missing := [name for name in required if listed[name].is_empty]:
            said = (
                "which is not among its properties: add it"
                if missing[0] not in schema.get("properties", {})
                else "which is false"
            )
            raise scope.nothing(f" allows nothing: it requires {missing[0]!r}, {said}")
        extra = list[tuple[ByteDFA, Language]]()
        if patterns or (is_written and others is not False):
            texts, strings = [bytes_of(name, scope) for name in listed], self.scalars.strings
            other_names = strings.all_but(texts) if names is None else strings.without(names, ByteDFA.from_strings(texts))
            extra = self._others(other_names, patterns, others if is_written else False, scope)
        if extra and low > 1 + sum(not language.is_empty for language in listed.values()):
            raise scope.error(
                f" is {low}: expected at most one more than it has properties, because other names may be repeated",
                "minProperties",
            )
        members = Members(listed=listed, others=extra, clauses=clauses, low=low, high=high)
        language = add_object(members, self.network(scope), scope)
        if language.is_empty:
            raise scope.nothing(" allows nothing: no object has what it requires")
        return language

    def _joined(self, parts: Sequence[object], scope: Scope) -> Language:
        """Return what several schemas allow together."""
        parts = [part for part in parts if part is not True]
        return self.language(parts[0] if len(parts) == 1 else {"allOf": parts} if parts else True, scope)

    def _name_patterns(self, schema: Schema, scope: Scope) -> list[tuple[ByteDFA, object]]:
        """Return the names that each of patternProperties matches, and the schema of their values."""
        scope = scope.below("patternProperties")
        patterns = mapping_of(schema.get("patternProperties", {}), scope)
        return [(self.scalars.matching(pattern, scope.below(pattern)), part) for pattern, part in patterns.items()]

    def _names(self, schema: Schema, scope: Scope) -> ByteDFA | None:
        """Return the names that propertyNames allows, None without it."""
        if schema.get("propertyNames", True) is True:
            return None
        scope = scope.below("propertyNames")
        if schema["propertyNames"] is False:
            return ByteDFA.from_strings([])
        part = self.normaliser.plain(mapping_of(schema["propertyNames"], scope), scope)
        if "$ref" in part or "allOf" in part:
            parts, scope = self.normaliser.parts(part, scope)
            part = merged(parts, scope)
        if "enum" in part or "const" in part:
            values = list_of(part["enum"], scope) if "enum" in part else [part["const"]]
            texts = [bytes_of(value, scope) for value in values if isinstance(value, str)]
            return self.scalars.strings.writable(ByteDFA.from_strings(texts))
        if unknown := sorted(set(part) - {"pattern", "minLength", "maxLength", "format", "type"}):
            raise scope.error(f" has {unknown[0]}: expected pattern, minLength, maxLength, enum or const")
        return self.scalars.string_values(part, scope)

    def _others(
        self, strings: ByteDFA, patterns: Sequence[tuple[ByteDFA, object]], others: object, scope: Scope
    ) -> list[tuple[ByteDFA, Language]]:
        """Return the names and values of members that are not listed, one pair for all names that match the same patterns."""
        groups: list[tuple[ByteDFA, list[object]]] = [(strings, [])]
        for names, part in patterns:
            groups = [
                (rest, parts)
                for strings, parts_before in groups
                for rest, parts in (
                    (self.scalars.strings.both(strings, names), [*parts_before, part]),
                    (self.scalars.strings.without(strings, names), parts_before),
                )
                if rest.num_states
            ]
            if len(groups) > _MAX_GROUPS:
                raise scope.error(f" has patterns that overlap in more than {_MAX_GROUPS} ways", "patternProperties")
        result: list[tuple[ByteDFA, Language]] = []
        for names, parts in groups:
            if not parts and others is False:
                continue
            at = scope.below("patternProperties" if parts else "additionalProperties")
            values = self.inner(at) if not parts and others in (True, {}) else self._joined(parts or [others], at)
            if not values.is_empty:
                result.append((self.scalars.strings.quoted(names), values))
        return [(names, values) for names, values in result if names.num_states]
