"""Byte automata of the texts of a JSON Schema's instances; each is built from the automata of the schema's parts.

Every text of the language is JSON that the schema allows, and unsupported keywords are refused by name. The language has
only one form of each instance:

* only listed properties where there are any, in the order of the schema;
* one space may follow each comma and colon, and there are no other blanks;
* strings use the short escapes (\\n, \\t, \\\\ and similar ones) and never `\\u`;
* numbers between bounds have no exponent, and a few digits behind those of the bounds;
* among the formats, a "uri" or "iri" is an HTTP address, and names of hosts are ASCII.
"""

import json
import marshal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

from leafbeam.automata.boolean import intersection
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_containers import Containers
from leafbeam.automata.json_merge import distributed, merged, same
from leafbeam.automata.json_negation import negation
from leafbeam.automata.json_normal import Normaliser
from leafbeam.automata.json_notes import Notes, SchemaNote
from leafbeam.automata.json_references import References
from leafbeam.automata.json_scalars import Scalars
from leafbeam.automata.json_scope import (
    NOT_VALUES,
    NothingError,
    Schema,
    Scope,
    check_keywords,
    list_of,
    mapping_of,
    names_of,
    type_of,
    types_of,
)
from leafbeam.automata.json_strings import Strings
from leafbeam.automata.json_unevaluated import closed, unevaluated
from leafbeam.automata.json_values import FIXED, add_value, any_scalar, any_value, text_of
from leafbeam.automata.network import END, START, Language, Network, determinized
from leafbeam.errors import AutomatonError
from leafbeam.json_reader import parse_json

MAX_DEPTH = 3
_MAX_PARTS = 4_000
_ENOUGH_STATES = 4_000  # of a schema that is inside itself: once more could take many times as many


@dataclass(frozen=True, kw_only=True)
class CompiledSchema:
    """The language of the texts of a schema's instances, and what it does not hold to."""

    language: Language
    notes: tuple[SchemaNote, ...]


def schema_language(
    schema: Schema | bool | str, max_states: int, *, max_depth: int = MAX_DEPTH, strict: bool = False
) -> ByteDFA:
    """Return the language of `compile_schema` as a byte automaton."""
    return determinized(compile_schema(schema, max_states, max_depth=max_depth, strict=strict).language)


def compile_schema(
    schema: Schema | bool | str, max_states: int, *, max_depth: int = MAX_DEPTH, strict: bool = False
) -> CompiledSchema:
    """Return the language of the texts of a schema's instances, with notes of what it leaves out.

    docs/how-to/generate-json.md lists the keywords. What a schema does not restrict may be any JSON value. Keywords that JSON
    Schema does not define, formats other than `FORMATS`, and keywords of other types say nothing.

    Args:
        schema: The schema, or its JSON text.
        max_states: The largest number of states of the language.
        max_depth: How deeply lists and objects may nest in a value that the schema does not describe, and how often a schema
            may be inside itself.
        strict: Whether ignored keywords and formats, and schemas inside themselves, are refused.

    Raises:
        AutomatonError: For keywords that are not supported, with the JSON pointer, for a schema that allows nothing, and above
            `max_states`.
        MissingExtraError: If outlines-core is not installed.
    """
    if max_depth < 0:
        raise AutomatonError(f"max_depth is {max_depth}: expected 0 or more")
    try:
        if isinstance(schema, str):
            schema = _parsed(schema)
        schema = _plain(schema)
        references = References(schema)
        scalars = Scalars(strings=Strings(max_states=max_states), max_states=max_states, notes=Notes(strict=strict))
        return _deepest(_Compiler(references=references, max_states=max_states, max_depth=max_depth, scalars=scalars), schema)
    except RecursionError as error:
        raise AutomatonError("the schema nests too deeply: expected at most a few hundred levels") from error


def _deepest(compiler: "_Compiler", schema: Any) -> CompiledSchema:
    """Return what a schema allows, inside itself as often as `max_depth` says, or less often where that gets large."""
    deepest: CompiledSchema | None = None
    for inside in range(compiler.max_depth + 1):
        notes = Notes(strict=compiler.scalars.notes.strict)
        attempt = replace(compiler, max_inside=inside, scalars=replace(compiler.scalars, notes=notes))
        try:
            language = attempt.whole(schema)
        except AutomatonError:
            if deepest is not None:
                return deepest
            if inside == compiler.max_depth or not notes.has_bounded_reference:
                raise
            continue
        deepest = CompiledSchema(language=language, notes=tuple(notes.kept))
        if not notes.has_bounded_reference or language.size > _ENOUGH_STATES:
            return deepest
    assert deepest is not None
    return deepest


def _plain(schema: Any) -> Any:
    """Return a schema whose mappings are dictionaries.

    Raises AutomatonError for keys that begin with NUL, which keywords of this compiler do, and which no text has.
    """
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if names := [name for name in part if isinstance(name, str) and name.startswith("\0")]:
                raise AutomatonError(f"the schema has the key {names[0]!r}: expected keys without NUL")
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, Mapping):
            return _plain(_with_dictionaries(schema))
    return schema


def _with_dictionaries(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _with_dictionaries(value) for name, value in part.items()}
    return [_with_dictionaries(value) for value in part] if isinstance(part, list) else part


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:  # JSON's own, and that of integers with thousands of digits
        raise AutomatonError(f"the schema is not JSON: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Compiler:
    """A compilation of one schema.

    Args:
        built: The languages of parts by base and text. Equal parts are built once.
        max_inside: How often a schema may be inside itself.
        parts: The number of parts so far.
        nothing: Why parts allow nothing.
    """

    references: References
    max_states: int
    max_depth: int
    scalars: Scalars
    max_inside: int = 0
    built: dict[tuple[object, ...], Language] = field(default_factory=dict[tuple[object, ...], Language], init=False)
    parts: Iterator[int] = field(default_factory=count, init=False)
    nothing: list[NothingError] = field(default_factory=list[NothingError], init=False)

    @cached_property
    def normaliser(self) -> Normaliser:
        return Normaliser(references=self.references, max_inside=self.max_inside, notes=self.scalars.notes)

    @cached_property
    def containers(self) -> Containers:
        return Containers(
            language=self.language, inner=self._inner, network=self._network, normaliser=self.normaliser, scalars=self.scalars
        )

    def whole(self, schema: object) -> Language:
        """Return the language of the schema of the document. Raises AutomatonError if it allows nothing."""
        language = self.language(schema, Scope())
        if language.is_empty:
            raise self.nothing[-1] if self.nothing else AutomatonError("the schema allows nothing")
        return language

    def language(self, schema: object, scope: Scope) -> Language:
        """Return the language of a part; one that allows nothing is empty, and `nothing` says why."""
        if schema is True:
            return self._undescribed(scope)
        if schema is False:
            self.nothing.append(scope.nothing(" is false and allows nothing"))
            return ByteDFA.from_strings([])
        schema = mapping_of(schema, scope)
        if (base := self.references.inside(schema, scope.base, lambda: scope.path)) != scope.base:
            scope = replace(scope, base=base)
        key = None
        try:
            plain = self.normaliser.plain(schema, scope)
            key = self._key(plain, schema, scope)
            if key is not None and key in self.built:
                return self.built[key]
            language = self._language(plain, scope)
        except NothingError as error:
            self.nothing.append(error)
            language = ByteDFA.from_strings([])
        if key is not None:
            self.built[key] = language
        return language

    def _key(self, plain: dict[str, Any], schema: Schema, scope: Scope) -> tuple[object, ...] | None:
        """Return what the language of a part depends on: its text, its base, and how often it is inside what it refers to."""
        try:
            text = marshal.dumps(plain, 0)  # several times as fast as repr or JSON; version 0 is by value alone
        except ValueError:  # it nests too deeply, or has values that are not JSON's, which are refused later
            return None
        return scope.base, text, self.references.open_within(schema, scope.base, scope.open_refs)

    def _language(self, schema: Schema, scope: Scope) -> Language:
        """Return the language of a schema that the normaliser made plain."""
        if next(self.parts) > _MAX_PARTS:
            raise AutomatonError(
                f"the schema unrolls to more than {_MAX_PARTS:,} parts, because alternatives hold together or "
                "schemas are inside themselves: simplify it, or lower max_depth",
                pointer=scope.path,
            )
        if set(schema) == {"$ref"}:
            location, open_refs = self.normaliser.referred(schema["$ref"], scope)
            return self.language(location.schema, Scope(start=location.path, base=location.base, open_refs=open_refs))
        if "$ref" in schema or "allOf" in schema:
            parts, scope = self.normaliser.parts(schema, scope)
            schema = merged(parts, scope)
        schema = self.normaliser.with_clauses(schema, scope)
        if (rewritten := self.normaliser.without_logic(schema, scope)) is not None:
            return self._language(self.normaliser.plain(rewritten, scope), scope)
        if (alternatives := distributed(schema, scope)) is not None:
            return self._alternatives(*alternatives, schema, scope)
        if unevaluated(schema):
            return self._language(self.normaliser.plain(closed(schema, scope), scope), scope)
        return self._of_types(schema, scope)

    def _of_types(self, schema: Schema, scope: Scope) -> Language:
        types = types_of(schema, scope) or ["null", "boolean", "number", "string", "array", "object"]
        check_keywords(schema, scope)
        if "enum" in schema or "const" in schema:
            return self._values(schema, scope)
        if not schema:
            return self._undescribed(scope)
        if set(schema) == {"type"} and not {"array", "object"} & set(types):
            return any_scalar(tuple(types), self.max_states)
        excluded = list(schema.get(NOT_VALUES, ()))
        compilers: dict[str, Callable[[Schema, Scope], Language]] = {
            "string": self.scalars.string,
            "integer": lambda schema, scope: self.scalars.number(schema, scope, is_integer=True),
            "number": lambda schema, scope: self.scalars.number(schema, scope, is_integer=False),
            "array": self.containers.arrays,
            "object": self.containers.objects,
        }
        if len(types) == 1 and types[0] in compilers and not any(type_of(value) == types[0] for value in excluded):
            return compilers[types[0]](schema, scope)
        network = self._network(scope)
        reasons: list[NothingError] = []
        for name in types:
            for text in FIXED.get(name, ()):
                if not any(same(json.loads(text), value) for value in excluded):
                    network.add_text(START, text, END)
            if name in ("array", "object") and any(type_of(value) == name for value in excluded):
                continue  # other values of this type are valid too, and are not written
            if name in compilers:
                try:
                    network.add(START, compilers[name](schema, scope), END)
                except NothingError as error:
                    reasons.append(error)
        if reasons and len(reasons) == len(types):
            raise reasons[0]
        return network

    def _undescribed(self, scope: Scope) -> ByteDFA:
        self.scalars.notes.undescribed(scope, self.max_depth)
        return any_value(self.max_depth, self.max_states)

    def _inner(self, scope: Scope) -> ByteDFA:
        """Return the values in a list or object that says nothing about them."""
        depth = max(0, self.max_depth - 1)
        self.scalars.notes.undescribed(scope, depth)
        return any_value(depth, self.max_states)

    def _network(self, scope: Scope) -> Network:
        return Network(self.max_states, pointer=lambda: scope.path)

    def _values(self, schema: Schema, scope: Scope) -> Language:
        """Return the values of an enum or const that the keywords beside it allow."""
        name = "enum" if "enum" in schema else "const"
        values = list_of(schema["enum"], scope.below("enum")) if name == "enum" else [schema["const"]]
        if name == "enum" and "const" in schema:
            values = [value for value in values if same(value, schema["const"])]
        values = [value for value in values if not any(same(value, other) for other in schema.get(NOT_VALUES, ()))]
        types = types_of(schema, scope)
        beside = {key: value for key, value in schema.items() if key not in (name, "const", "type", NOT_VALUES)}
        network, num_allowed = self._network(scope), 0
        fitting: dict[str, ByteDFA] = {}  # what the keywords beside it allow, by type
        for number, value in enumerate(values):
            kind = type_of(value)
            if not types or kind in types or (kind == "integer" and "number" in types):
                part_scope = scope.below("enum", number) if name == "enum" else scope.below("const")
                text = text_of(value, part_scope)
                if beside:
                    if kind not in fitting:
                        fitting[kind] = determinized(self._of_types({**beside, "type": kind}, scope))
                    if not fitting[kind].accepts(text):
                        continue
                add_value(network, START, value, END, part_scope)
                num_allowed += 1
        if not num_allowed:
            said = f"is of type {schema['type']!r}" if not beside and types else f"fits {', '.join(sorted(beside)) or 'not'}"
            raise scope.nothing(f" allows nothing: no value of its {name} {said}")
        return network

    def _alternatives(self, name: str, parts: list[Any], schema: Schema, scope: Scope) -> Language:
        """Return what one of several schemas allows."""
        inner = scope.below(name)
        languages = [self.language(part, inner.below(number)) for number, part in enumerate(parts) if part is not False]
        if name == "oneOf" and not self._exclusive(schema["oneOf"], inner):
            languages = self._without_others(parts, schema["oneOf"], inner)
        network, num_allowed = self._network(inner), 0
        for language in languages:
            network.add(START, language, END)
            num_allowed += not language.is_empty
        if not num_allowed:
            raise inner.nothing(" allows nothing")
        return network

    def _without_others(self, parts: Sequence[object], alternatives: Sequence[Any], scope: Scope) -> list[Language]:
        """Return what each part allows, an alternative with the keywords beside it, and no other alternative does."""
        languages: list[Language] = []
        for number, part in enumerate(parts):
            at = scope.below(number)
            others = [other for other in range(len(parts)) if other != number and alternatives[other] is not False]
            others = [other for other in others if not self._exclusive([alternatives[number], alternatives[other]], scope)]
            language = self.language(part, at) if not others else None
            for other in others:
                alone = self.language({"allOf": [part, negation(alternatives[other])]}, at)
                language = alone if language is None else intersection(*map(determinized, (language, alone)), self.max_states)
            assert language is not None
            languages.append(language)
        return languages

    def _exclusive(self, parts: Sequence[object], scope: Scope) -> bool:
        """Return whether at most one of the alternatives can hold: by type, or by one property with distinct values."""
        schemas = [
            mapping_of({} if part is True else part, scope.below(at)) for at, part in enumerate(parts) if part is not False
        ]
        schemas = [
            mapping_of(self.references.resolved(part["$ref"], scope.path, scope.base).schema, scope)
            if set(part) == {"$ref"}
            else part
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
