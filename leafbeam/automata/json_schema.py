"""From a JSON Schema to a regular expression for the texts of its instances.

Every text of the language is JSON that the schema allows, and unsupported keywords are refused by name. Of all the ways to
write an instance, the language has one form:

* properties come in the order of the schema, listed ones only; one space may follow each comma and colon, and no other blanks;
* strings use the short escapes (\\n, \\t, \\\\ and the like) and never `\\u`;
* numbers between bounds have no exponent, and a few digits behind those of the bounds;
* of the formats, a "uri" is one of HTTP, and names of hosts and mailboxes are those of ASCII.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from leafbeam.automata.json_text import (
    CHARACTER,
    FORMATS,
    NUMBER,
    Bound,
    any_of,
    comma_list,
    decimals,
    integers,
    literal,
    repeat,
)
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError, short_repr

_ASCII = {"d": "[0-9]", "w": "[0-9A-Za-z_]", "D": "[^0-9]", "W": "[^0-9A-Za-z_]"}  # a schema's patterns are ECMAScript's
_NOTES = frozenset(["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"])
_META = frozenset(("$schema", "$id", "$comment", "$defs", "definitions"))
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "boolean": set[str](),
    "null": set[str](),
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties", "maxProperties"},
}
_FIXED = {"boolean": "(?:true|false)", "null": "null"}

Schema = Mapping[str, Any]


def schema_pattern(schema: Schema | str, max_states: int) -> str:
    """A pattern for `compile_pattern`.

    schema: a mapping or its JSON text. Types string (minLength, maxLength, a format of `FORMATS`; or `pattern`, with ^ and $
    around the whole and no character that JSON would have to escape), integer and number (bounds), boolean, null, array (items,
    prefixItems, minItems, maxItems), object (properties, required; or additionalProperties with a schema, maxProperties); lists
    of types; enum, const, anyOf, oneOf of visibly exclusive schemas, allOf of one, $ref into the
    schema without recursion. Raises AutomatonError with the JSON pointer for anything else.
    """
    try:
        if isinstance(schema, str):
            schema = _parsed(schema)
        return _Compiler(root=schema, max_states=max_states).pattern(schema, "#", ())
    except RecursionError as error:
        raise AutomatonError("the schema nests too deeply: expected at most a few hundred levels") from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # JSON's own, and that of integers with thousands of digits
        raise AutomatonError(f"the schema is not JSON: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Compiler:
    """path: the JSON pointer of the current schema; open_refs: the references that led to it."""

    root: Any
    max_states: int

    def pattern(self, schema: Any, path: str, open_refs: tuple[str, ...]) -> str:
        found = self._pattern(_mapping(schema, path), path, open_refs)
        if len(found) > 8 * self.max_states:  # references can double it at every level
            raise AutomatonError(f"{path} unrolls to more than {8 * self.max_states:,} characters: raise max_states")
        return found

    def _pattern(self, schema: Schema, path: str, open_refs: tuple[str, ...]) -> str:
        keywords = set(schema) - _NOTES - _META
        for combine in ("$ref", "anyOf", "oneOf", "allOf"):
            if combine in keywords:
                _only(keywords, {combine}, path, f"beside {combine}")
                return self._combined(combine, schema[combine], f"{path}/{combine}", open_refs)
        types = _types(schema, path)
        if "enum" in keywords or "const" in keywords:
            _only(keywords, {"enum", "type"} if "enum" in keywords else {"const", "type"}, path, "beside enum or const")
            values = _list(schema["enum"], f"{path}/enum") if "enum" in keywords else [schema["const"]]
            for value in values:
                kind = _type_of(value)
                if types and kind not in types and not (kind == "integer" and "number" in types):
                    raise AutomatonError(f"{path}: the value {value!r} is not of type {schema['type']!r}: leave it out")
            return any_of([literal(value, path) for value in values])
        if not types:
            found = f" (it has {', '.join(sorted(keywords))})" if keywords else ""
            raise AutomatonError(
                f"{path} has no type, so it allows any value{found}: say which, with type, enum, const or anyOf"
            )
        _only(keywords, {"type"}.union(*(_KEYWORDS[name] for name in types)), path, f"for type {schema['type']!r}")
        compilers: dict[str, Callable[[Schema, str, tuple[str, ...]], str]] = {
            "string": self._string,
            "integer": _integer,
            "number": _number,
            "array": self._array,
            "object": self._object,
        }
        return any_of([_FIXED.get(name) or compilers[name](schema, path, open_refs) for name in types])

    def _combined(self, combine: str, value: Any, path: str, open_refs: tuple[str, ...]) -> str:
        if combine == "$ref":
            if value in open_refs:
                raise AutomatonError(f"{path}: {value} leads back to itself, and no regular language nests without end")
            return self.pattern(self._resolved(value, path), str(value), (*open_refs, str(value)))
        parts = _list(value, path)
        if combine == "allOf" and len(parts) > 1:
            raise AutomatonError(f"{path} joins {len(parts)} schemas: expected one; write their keywords into one schema")
        if combine == "oneOf" and not self._exclusive(parts, path):
            raise AutomatonError(
                f"{path}: expected alternatives of different types, or objects that require one property with different "
                f"values (const or enum); where at most one can hold anyway, use anyOf"
            )
        return any_of([self.pattern(part, f"{path}/{number}", open_refs) for number, part in enumerate(parts)])

    def _resolved(self, pointer: Any, path: str) -> Any:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise AutomatonError(f"{path} is {pointer!r}: expected a pointer into this schema, like '#/$defs/item'")
        found = self.root
        for name in pointer[1:].split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise AutomatonError(f"{path}: {pointer} points to nothing in this schema")
            found = found[name]
        return found

    def _exclusive(self, parts: list[Any], path: str) -> bool:
        """Whether at most one of the alternatives can hold: by type, or by one property with distinct values."""
        schemas = [_mapping(part, path) for part in parts]
        schemas = [_mapping(self._resolved(part["$ref"], path), path) if "$ref" in part else part for part in schemas]
        families = [{"number" if name == "integer" else name for name in _types(schema, path)} for schema in schemas]
        if all(families) and sum(map(len, families)) == len(set[str]().union(*families)):
            return True
        names = [
            set(_names(schema.get("required", []), path)) & set(_mapping(schema.get("properties", {}), path))
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

    def _string(self, schema: Schema, path: str, open_refs: tuple[str, ...]) -> str:
        low, high = _span(schema, "minLength", "maxLength", path)
        present = {"pattern", "format", "minLength", "maxLength"} & set(schema)
        if len(present - {"minLength", "maxLength"}) and len(present) > 1:
            raise AutomatonError(
                f"{path} has {' and '.join(sorted(present))}: expected one of pattern, format or length bounds"
            )
        if "format" in schema:
            if not isinstance(schema["format"], str) or schema["format"] not in FORMATS:
                raise AutomatonError(f"{path}: format {schema['format']!r} is not among {', '.join(FORMATS)}: use pattern")
            return f'"{FORMATS[schema["format"]]}"'
        if "pattern" in schema:
            return f'"(?:{self._pattern_of(schema["pattern"], path)})"'
        return f'"{CHARACTER}{repeat(low, high)}"'

    def _pattern_of(self, pattern: Any, path: str) -> str:
        if not isinstance(pattern, str) or not pattern.startswith("^") or not pattern.endswith("$"):
            raise AutomatonError(
                f"{path}: the pattern is {pattern!r}: expected ^...$ (without them it would allow anything around a match)"
            )
        inner = re.sub(r"\\(.)", lambda pair: _ASCII.get(pair[1], pair[0]), pattern[1:-1])
        used_256 = compile_pattern(inner, self.max_states).used_256
        if used_256[[*range(32), ord('"'), ord("\\")]].any():
            raise AutomatonError(
                f"{path}: the pattern {pattern!r} allows a quote, a backslash or a control character, which JSON writes as an "
                f'escape: leave them out, for example with [^"\\\\\\x00-\\x1f] in place of a dot'
            )
        return inner

    def _array(self, schema: Schema, path: str, open_refs: tuple[str, ...]) -> str:
        low, high = _span(schema, "minItems", "maxItems", path)
        first = _list(schema["prefixItems"], f"{path}/prefixItems") if "prefixItems" in schema else []
        parts = [self.pattern(part, f"{path}/prefixItems/{number}", open_refs) for number, part in enumerate(first)]
        items = schema.get("items", False)
        if items is False:
            high = len(parts) if high is None else min(high, len(parts))
            if "items" not in schema and not parts:
                raise AutomatonError(f"{path} does not say what its items are: add items or prefixItems")
            if low > high:
                raise AutomatonError(f"{path} allows {high} items and requires {low}: add items")
        item = "" if items is False else self.pattern(items, f"{path}/items", open_refs)
        parts = parts if high is None else parts[:high]
        rest = ""
        if item and (high is None or high > len(parts)):
            more = None if high is None else high - len(parts)
            if parts:
                rest = f"(?:, ?{item}){repeat(max(0, low - len(parts)), more)}"
            else:
                rest = f"{item}(?:, ?{item}){repeat(max(0, low - 1), None if more is None else more - 1)}"
                rest = rest if low else f"(?:{rest})?"
        for number in range(len(parts) - 1, -1, -1):
            rest = f"{', ?' if number else ''}{parts[number]}{rest}"
            rest = rest if number < low else f"(?:{rest})?"
        return rf"\[{rest}\]"

    def _object(self, schema: Schema, path: str, open_refs: tuple[str, ...]) -> str:
        properties = _mapping(schema.get("properties", {}), f"{path}/properties")
        required = _names(schema.get("required", []), f"{path}/required")
        others = schema.get("additionalProperties")
        if unknown := [name for name in required if name not in properties]:
            raise AutomatonError(f"{path} requires {unknown[0]!r}, which is not among its properties: add it")
        if isinstance(others, Mapping) and not properties:
            pair = f'"{CHARACTER}*": ?{self.pattern(others, f"{path}/additionalProperties", open_refs)}'
            max_count = _span(schema, "minProperties", "maxProperties", path)[1]
            return rf"\{{{comma_list(pair, max_count)}\}}"
        if isinstance(others, Mapping) or "maxProperties" in schema:
            raise AutomatonError(f"{path}: additionalProperties with a schema and maxProperties go without properties")
        if not properties and others is not False:
            raise AutomatonError(f"{path} does not say what its properties are: add properties, or a schema for them all")
        pairs = [
            (f"{literal(str(name), path)}: ?{self.pattern(part, f'{path}/properties/{name}', open_refs)}", name in required)
            for name, part in properties.items()
        ]
        after = [f", ?{pair}" if must else f"(?:, ?{pair})?" for pair, must in pairs]
        if required:
            anchor = next(number for number, (_, must) in enumerate(pairs) if must)
            before = "".join(f"(?:{pair}, ?)?" for pair, _ in pairs[:anchor])
            return rf"\{{{before}{pairs[anchor][0]}{''.join(after[anchor + 1 :])}\}}"
        starts = [pair + "".join(after[number + 1 :]) for number, (pair, _) in enumerate(pairs)]
        return rf"\{{{f'{any_of(starts)}?' if starts else ''}\}}"


def _integer(schema: Schema, path: str, open_refs: tuple[str, ...]) -> str:
    least, most = _bounds(schema, path)
    low = None if least is None else math.floor(least.value) + 1 if least.strict else math.ceil(least.value)
    high = None if most is None else math.ceil(most.value) - 1 if most.strict else math.floor(most.value)
    if low is not None and high is not None and low > high:
        raise AutomatonError(f"{path} allows no integer: its bounds leave {low} to {high}")
    return integers(low, high)


def _number(schema: Schema, path: str, open_refs: tuple[str, ...]) -> str:
    low, high = _bounds(schema, path)
    if low is None and high is None:
        return NUMBER
    if low is not None and high is not None and low.value > high.value:
        raise AutomatonError(f"{path} allows no number: its bounds leave {low.value} to {high.value}")
    if not (found := decimals(low, high)):
        raise AutomatonError(f"{path} allows no number: exclusive bounds leave nothing")
    return found


def _bounds(schema: Schema, path: str) -> tuple[Bound | None, Bound | None]:
    """The tightest lower and upper bounds."""
    found: dict[str, list[Bound]] = {"minimum": [], "maximum": []}
    for name in _BOUNDS & set(schema):
        value = schema[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_bound(value):
            raise AutomatonError(f"{path}/{name} is {short_repr(value)}: expected a number between -1.7e308 and 1.7e308")
        strict = name.startswith("exclusive")
        found[name.removeprefix("exclusive").lower()].append(Bound(value=Decimal(repr(value)), strict=strict))
    low = max(found["minimum"], key=lambda bound: (bound.value, bound.strict), default=None)
    high = min(found["maximum"], key=lambda bound: (bound.value, not bound.strict), default=None)
    return low, high


def _is_bound(value: float) -> bool:
    """Whether a number is finite as a float64, which Python's integers need not be."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _span(schema: Schema, minimum: str, maximum: str, path: str) -> tuple[int, int | None]:
    """The bounds of a length, checked."""
    for name in (minimum, maximum):
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise AutomatonError(f"{path}/{name} is {value!r}: expected a whole number, 0 or more")
    low, high = schema.get(minimum, 0), schema.get(maximum)
    if high is not None and low > high:
        raise AutomatonError(f"{path} has {minimum} {low} above {maximum} {high}")
    return low, high


def _types(schema: Schema, path: str) -> list[str]:
    value = schema.get("type", [])
    types = [value] if isinstance(value, str) else value
    known = isinstance(types, list) and all(isinstance(name, str) and name in _KEYWORDS for name in types)
    if not known or len(set(types)) < len(types):
        raise AutomatonError(f"{path}/type is {value!r}: expected one or several of {', '.join(_KEYWORDS)}")
    return types


def _type_of(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    names = ((int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def _only(keywords: set[str], known: set[str], path: str, when: str) -> None:
    if unknown := sorted(keywords - known):
        raise AutomatonError(f"{path} has {', '.join(unknown)} {when}, which is not supported: expected {sorted(known)}")


def _mapping(value: Any, path: str) -> Schema:
    if not isinstance(value, Mapping):
        raise AutomatonError(f"{path} is {value!r}: expected a schema object (true and false are not supported)")
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise AutomatonError(f"{path} is {value!r}: expected a list that is not empty")
    return value


def _names(value: Any, path: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise AutomatonError(f"{path} is {value!r}: expected a list of property names")
    return value
