"""The negation of a schema, as a schema without `not` at its top.

    not (a and b)   is   not a, or not b        the keywords of one schema hold together
    not (a or b)    is   not a and not b        anyOf

A keyword restricts instances of one type only, so what violates it has that type: `not {"minLength": 3}` is
`{"type": "string", "maxLength": 2}`. A keyword whose violation cannot be written is left out of the alternatives, which then
allow less than the schema does, and never more.
"""

from collections.abc import Callable, Mapping
from typing import Any

from leafbeam.automata.json_scope import (
    CLAUSES,
    CONDITIONS,
    CONTAINS,
    NOT_PATTERNS,
    NOT_VALUES,
    NOTS,
    Schema,
    Scope,
    list_of,
    mapping_of,
    names_of,
    types_of,
)

_TYPES = ("null", "boolean", "number", "string", "array", "object")
_COUNTED = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}


def negated(schema: Schema, scope: Scope) -> list[object]:
    """Return schemas, one of which allows each instance that `schema` does not: some, if not all, of them."""
    alternatives: list[object] = []
    for name, value in schema.items():
        if name == "items" and "prefixItems" in schema:  # it is about the items behind those
            continue
        if name in _NEGATIONS:
            alternatives += _NEGATIONS[name](value, scope.below(name))
        elif name in _COUNTED:
            kind, other, step = _COUNTED[name]
            if isinstance(value, int) and value + step >= 0:
                alternatives.append({"type": kind, other: value + step})
        elif name in _BOUNDS:
            alternatives.append({"type": "number", _BOUNDS[name]: value})
    return alternatives


def negation(part: object) -> object:
    """Return the schema `not part`, simplified for booleans."""
    return (not part) if isinstance(part, bool) else {"not": part}


def _type(value: object, scope: Scope) -> list[object]:
    types = types_of({"type": value}, scope)
    left = [name for name in _TYPES if name not in types and not (name == "number" and "integer" in types)]
    return [{"type": left}] if left else []


def _values(values: list[object]) -> list[object]:
    return [{NOT_VALUES: values}]


def _required(value: object, scope: Scope) -> list[object]:
    return [{"type": "object", "properties": {name: False}} for name in names_of(value, scope)]


def _properties(value: object, scope: Scope) -> list[object]:
    return [
        {"type": "object", "required": [name], "properties": {name: negation(part)}}
        for name, part in mapping_of(value, scope).items()
    ]


def _items(value: object, scope: Scope) -> list[object]:
    """The first item that violates the schema of all, or an item at its own position."""
    parts = value if isinstance(value, list) else [value]
    return [
        {"type": "array", "prefixItems": [True] * number + [negation(part)], "minItems": number + 1}
        for number, part in enumerate(parts)
    ]


def _clauses(value: Any, scope: Scope) -> list[Any]:
    """Return the objects in which no literal of one of the clauses holds."""
    return [
        {
            "type": "object",
            "required": [name for name, present in clause if not present],
            "properties": {name: False for name, present in clause if present},
        }
        for clause in value
    ]


def _contains(value: Any, scope: Scope) -> list[Any]:
    """Return the lists of which fewer items match, and those of which more do."""
    parts = [{CONTAINS: [[part, 0, low - 1]]} for part, low, _ in value if low]
    parts += [{CONTAINS: [[part, high + 1, None]]} for part, _, high in value if high is not None]
    return [{"type": "array", **part} for part in parts]


def _conditions(value: Any, scope: Scope) -> list[Any]:
    return [
        {"allOf": parts}
        for test, then, otherwise in value
        for parts in ([test, negation(then)], [negation(test), negation(otherwise)])
    ]


def _dependent(value: object, scope: Scope) -> list[object]:
    return [
        {"allOf": [{"type": "object", "required": [name]}, negation(part)]} for name, part in mapping_of(value, scope).items()
    ]


_NEGATIONS: Mapping[str, Callable[[Any, Scope], list[Any]]] = {
    "type": _type,
    "enum": lambda value, scope: _values(list_of(value, scope)),
    "const": lambda value, scope: _values([value]),
    "pattern": lambda value, scope: [{"type": "string", NOT_PATTERNS: [value]}],
    "required": _required,
    "properties": _properties,
    "items": _items,
    "prefixItems": _items,
    "dependentSchemas": _dependent,
    CLAUSES: _clauses,
    CONDITIONS: _conditions,
    CONTAINS: _contains,
    NOTS: lambda value, scope: value,
    "allOf": lambda value, scope: [negation(part) for part in list_of(value, scope)],
    "anyOf": lambda value, scope: [{"allOf": [negation(part) for part in list_of(value, scope)]}],
    "oneOf": lambda value, scope: [{"allOf": [negation(part) for part in list_of(value, scope)]}],
}
