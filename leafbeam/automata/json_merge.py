"""One schema that allows what several allow together: those of allOf, and what stands beside a $ref, anyOf or oneOf.

Keywords are joined, not languages: a language lists the properties of its own schema only, and those of two schemas need not be
the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leafbeam.automata.json_scope import Schema, Scope, list_of, mapping_of, names_of, types_of
from leafbeam.errors import counted

_HIGHEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_CHOICES = ("anyOf", "oneOf")
# Keywords whose meaning depends on others of the same schema.
_ALONE = {
    "prefixItems": {"items", "additionalItems"},
    "items": {"prefixItems"},
    "patternProperties": {"properties", "additionalProperties"},
}


def merged(schemas: Sequence[Schema], scope: Scope) -> Schema:
    """Return one schema for several, none of which has allOf or $ref. Raises AutomatonError where keywords cannot be joined."""
    result: dict[str, Any] = dict(schemas[0])
    for schema in schemas[1:]:
        result = _merged(result, dict(schema), scope)
    return result


def _merged(first: dict[str, Any], second: dict[str, Any], scope: Scope) -> dict[str, Any]:
    result = first | second
    for name in sorted(set(_ALONE) & (set(first) ^ set(second))):
        other = second if name in first else first
        if clash := sorted(_ALONE[name] & set(other)):
            raise scope.error(f" joins {name} of one schema with {clash[0]} of another: write them into one")
    for name in sorted(set(first) & set(second)):
        one, two = first[name], second[name]
        if name in ("properties", "additionalProperties", "required", "enum", "const", "type") or one == two:
            continue
        if name in _CHOICES:
            raise scope.error(f": expected one {name}, got two that hold together")
        if name not in _JOIN:
            raise scope.error(f" joins two schemas with different {name}: write them into one")
        if name != "items" and not all(isinstance(value, int | float) for value in (one, two)):
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
        result["enum"] = [value for value in values[0] if any(_same(value, other) for other in values[1])]
        result.pop("const", None)
        if not result["enum"]:
            raise scope.error(" allows nothing: no value is in both enums")
    return result


def _common_types(first: list[str], second: list[str], scope: Scope) -> list[str]:
    both = [name for name in first if name in second or (name == "integer" and "number" in second)]
    both += [name for name in second if name == "integer" and "number" in first and name not in both]
    if not both:
        raise scope.error(f" allows nothing: its types are {', '.join(first)} and {', '.join(second)}")
    return both


def _join_properties(result: dict[str, Any], first: Schema, second: Schema, scope: Scope) -> None:
    """Write the properties that both schemas allow; where one allows no others, those of the other alone are left out."""
    if "properties" not in result and "additionalProperties" not in result:
        return
    parts = [mapping_of(schema.get("properties", {}), scope.below("properties")) for schema in (first, second)]
    others = [schema.get("additionalProperties", True) for schema in (first, second)]
    properties: dict[str, Any] = {}
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


def _values(schema: Schema, scope: Scope) -> list[Any] | None:
    if "enum" in schema:
        return list_of(schema["enum"], scope.below("enum"))
    return [schema["const"]] if "const" in schema else None


def _same(one: Any, two: Any) -> bool:
    """Return whether two JSON values are equal: true is not 1, and 1.0 is."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(_same(one[name], two[name]) for name in one)
    return one == two


def _both(one: Any, two: Any) -> Any:
    return {"allOf": [one, two]}


_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(_HIGHEST, max),
    **dict.fromkeys(_LOWEST, min),
    "items": _both,
}


def distributed(schema: Schema, scope: Scope) -> tuple[str, list[object]] | None:
    """Return the alternatives of a schema's anyOf or oneOf, each with the keywords beside it; None if it has neither."""
    found = [name for name in _CHOICES if name in schema]
    if not found:
        return None
    if len(found) > 1:
        raise scope.error(f": expected anyOf or oneOf, got {counted(len(found), 'of them', 'of them')}")
    rest = {name: value for name, value in schema.items() if name != found[0]}
    parts = list_of(schema[found[0]], scope.below(found[0]))
    return found[0], [part if part is False or not rest else {"allOf": [rest, part]} for part in parts]
