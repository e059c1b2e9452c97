"""One schema that allows what several allow together: those of allOf, and what stands beside a $ref, anyOf or oneOf.

Keywords are joined, not languages: a language lists the properties of its own schema only, and those of two schemas need not be
the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from leafbeam.automata.json_scope import (
    CLAUSES,
    CONDITIONS,
    CONTAINS,
    NOT_PATTERNS,
    NOT_VALUES,
    NOTS,
    PATTERNS,
    Schema,
    Scope,
    list_of,
    mapping_of,
    names_of,
    types_of,
)
from leafbeam.automata.json_unevaluated import unevaluated

_HIGHEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_CHOICES = ("anyOf", "oneOf")
_LISTS = (CLAUSES, CONDITIONS, CONTAINS, NOTS, NOT_VALUES, PATTERNS, NOT_PATTERNS)
# Keywords whose meaning depends on others of the same schema.
_ALONE = {
    "prefixItems": {"items", "additionalItems"},
    "items": {"prefixItems", "additionalItems"},
    "additionalItems": {"items"},
    "patternProperties": {"additionalProperties"},
    "additionalProperties": {"patternProperties"},
}


def merged(schemas: Sequence[Schema], scope: Scope) -> Schema:
    """Return one schema for several, none of which has allOf or $ref. Raises AutomatonError where keywords cannot be joined."""
    result: dict[str, Any] = dict(schemas[0])
    for schema in schemas[1:]:
        result = _merged(result, dict(schema), scope)
    return result


def _with_prefix(first: dict[str, Any], second: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two schemas, the first items of one of which are written out where the other has a schema of all items."""
    for whole, prefix in ((first, second), (second, first)):
        items, parts = whole.get("items"), prefix.get("prefixItems")
        is_apart = "prefixItems" not in whole and "items" not in prefix
        if is_apart and isinstance(items, Mapping) and isinstance(parts, list):
            both = [_both(items, part) for part in parts]
            whole["prefixItems"], prefix["prefixItems"], prefix["items"] = both, both, items
    return first, second


def _merged(first: dict[str, Any], second: dict[str, Any], scope: Scope) -> dict[str, Any]:
    first, second = _with_prefix(dict(first), dict(second))
    result = first | second
    for name in sorted(set(_ALONE) & (set(first) ^ set(second))):
        other = second if name in first else first
        own = first if name in first else second
        without_effect = name in ("prefixItems", "items") and own[name] in (True, {})
        if not without_effect and (clash := sorted(key for key in _ALONE[name] & set(other) if other[key] is not True)):
            raise scope.error(f" joins {name} of one schema with {clash[0]} of another: write them into one")
    is_limited = any(part.get("additionalProperties", True) is not True for part in (first, second))
    if "patternProperties" in first and "patternProperties" in second and is_limited and first != second:
        raise scope.error(" joins two schemas with patternProperties and additionalProperties: write them into one")
    for name in sorted(set(first) & set(second)):
        one, two = first[name], second[name]
        if name in ("properties", "additionalProperties", "required", "enum", "const", "type") or one == two:
            continue
        if name in _CHOICES:  # one of the first, within which one of the second
            result[name] = [_both(part, {name: two}) for part in list_of(one, scope.below(name))]
            continue
        if name in _LISTS:
            result[name] = [*one, *two]
            continue
        if name == "pattern":
            result[PATTERNS] = [*result.get(PATTERNS, ()), two]
            result[name] = one
            continue
        if name in ("dependentSchemas", "patternProperties"):
            result[name] = _joined_parts(one, two)
            continue
        if name not in _JOIN:
            raise scope.error(f" joins two schemas with different {name}: write them into one")
        if name not in _SCHEMAS and not all(isinstance(value, int | float) for value in (one, two)):
            raise scope.error(f" joins two schemas whose {name} are not both numbers")
        result[name] = _JOIN[name](one, two)
    if "type" in first and "type" in second:
        result["type"] = _common_types(types_of(first, scope), types_of(second, scope), scope)
    if "required" in result:
        names = [names_of(part.get("required", []), scope.below("required")) for part in (first, second)]
        result["required"] = list(dict.fromkeys([*names[0], *names[1]]))
    _join_properties(result, first, second, scope)
    values = [value for part in (first, second) if (value := _values(part, scope)) is not None]
    if len(values) == 2:
        result["enum"] = [value for value in values[0] if any(same(value, other) for other in values[1])]
        result.pop("const", None)
        if not result["enum"]:
            raise scope.nothing(" allows nothing: no value is in both enums")
    return result


def _common_types(first: list[str], second: list[str], scope: Scope) -> list[str]:
    both = [name for name in first if name in second or (name == "integer" and "number" in second)]
    both += [name for name in second if name == "integer" and "number" in first and name not in both]
    if not both:
        raise scope.nothing(f" allows nothing: its types are {', '.join(first)} and {', '.join(second)}")
    return both


def _join_properties(result: dict[str, Any], first: Schema, second: Schema, scope: Scope) -> None:
    """Write the properties that both schemas allow; where one allows no others, those of the other alone are left out."""
    if "properties" not in result and "additionalProperties" not in result:
        return
    parts = [mapping_of(schema.get("properties", {}), scope.below("properties")) for schema in (first, second)]
    others = [schema.get("additionalProperties", True) for schema in (first, second)]
    properties: dict[str, object] = {}
    for name in dict.fromkeys([*parts[0], *parts[1]]):
        schemas = [part.get(name, other) for part, other in zip(parts, others, strict=True)]
        schemas = [schema for schema in schemas if schema is not True]
        if False in schemas:
            properties[name] = False
        else:
            properties[name] = {"allOf": schemas} if len(schemas) > 1 else schemas[0] if schemas else True
    result["properties"] = properties
    if len(limits := [other for other in others if other is not True]) == 2 and False not in limits:
        result["additionalProperties"] = {"allOf": limits}
    elif limits:
        result["additionalProperties"] = False if False in limits else limits[0]


def _values(schema: Schema, scope: Scope) -> list[object] | None:
    if "enum" in schema:
        return list_of(schema["enum"], scope.below("enum"))
    return [schema["const"]] if "const" in schema else None


def same(one: object, two: object) -> bool:
    """Return whether two JSON values are equal: true is not 1, and 1.0 is."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    return one == two


def _both(one: object, two: object) -> object:
    return {"allOf": [one, two]}


def _joined_parts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas of both mappings, those of one name joined."""
    return {
        name: _both(first[name], second[name]) if name in first and name in second else first.get(name, second.get(name))
        for name in dict.fromkeys([*first, *second])
    }


def _common_multiple(first: object, second: object) -> object:
    one, two = (Decimal(repr(value)) for value in (first, second))
    scale = Decimal(10) ** max(0, *(-int(value.as_tuple().exponent) for value in (one, two)))
    multiple = Decimal(math.lcm(int(one * scale), int(two * scale))) / scale
    return int(multiple) if multiple == int(multiple) else float(multiple)


_SCHEMAS = ("items", "additionalItems", "propertyNames")
_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(_HIGHEST, max),
    **dict.fromkeys(_LOWEST, min),
    **dict.fromkeys(_SCHEMAS, _both),
    "uniqueItems": lambda one, two: bool(one or two),
    "multipleOf": _common_multiple,
}


def distributed(schema: Schema, scope: Scope) -> tuple[str, list[object]] | None:
    """Return the alternatives of a schema's anyOf or oneOf, each with the keywords beside it; None if it has neither."""
    name = next((name for name in _CHOICES if name in schema), None)
    if name is None:
        return None
    outer = unevaluated(schema)
    rest = {key: value for key, value in schema.items() if key != name and key not in outer}
    parts = list_of(schema[name], scope.below(name))
    return name, [
        part if part is False or not (rest or outer) else {"allOf": [rest, part] if rest else [part], **outer} for part in parts
    ]
