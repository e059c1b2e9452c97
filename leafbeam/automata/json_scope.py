"""The position of a part within a JSON Schema, and checks of the part whose errors name that position."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leafbeam.automata.json_references import below
from leafbeam.errors import AutomatonError, short_repr

BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {*BOUNDS, "multipleOf", "divisibleBy"},
    "number": {*BOUNDS, "multipleOf", "divisibleBy"},
    "boolean": set[str](),
    "null": set[str](),
    "array": {
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains"),
        *("maxContains", "unevaluatedItems"),
    },
    "object": {
        *("properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties"),
        *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    },
}
# Keywords that restrict instances, and are refused.
REFUSED = {"disallow", "extends"}
# References that mean different schemas from different places, unless one schema has the anchor. The others are refused.
DYNAMIC = {"$dynamicRef": "$dynamicAnchor", "$recursiveRef": "$recursiveAnchor"}
COMBINING = {"$ref", "allOf", "anyOf", "oneOf", "enum", "const", "type", "not", "if", "then", "else"}
# Keywords that say nothing about instances: notes, and names of schemas.
NOTES = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"),
    *("$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
}
# Keywords of this compiler, which several of JSON Schema become before schemas are joined. No schema has them: a key with a NUL
# is refused at the beginning.
NOTS, CONDITIONS, CLAUSES, CONTAINS, NOT_VALUES, PATTERNS, NOT_PATTERNS = (
    f"\0{name}" for name in ("nots", "conditions", "clauses", "contains", "not values", "patterns", "not patterns")
)
INTERNAL = {NOTS, CONDITIONS, CLAUSES, CONTAINS, NOT_VALUES, PATTERNS, NOT_PATTERNS}
RESTRICTING = (COMBINING | REFUSED | {*DYNAMIC} | INTERNAL | set[str]().union(*KEYWORDS.values())) - NOTES
KNOWN = NOTES | RESTRICTING

Schema = Mapping[str, Any]


class NothingError(AutomatonError):
    """A part of a schema allows no instances; what may do without that part is compiled without it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The position of a schema.

    Args:
        start: The JSON pointer of a schema around it.
        names: The keywords, names and numbers that lead from there to it.
        base: The base URI of its references.
        open_refs: The schemas whose `$ref` led to it.
    """

    start: str = "#"
    names: tuple[object, ...] = ()
    base: str = ""
    open_refs: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        """Return the JSON pointer of the schema, which few schemas need."""
        return below(self.start, *self.names)

    def below(self, *names: object) -> "Scope":
        return Scope(start=self.start, names=(*self.names, *names), base=self.base, open_refs=self.open_refs)

    def error(self, message: str, *names: object) -> AutomatonError:
        """Return an error about a part of the schema; its pointer comes before the message."""
        path = below(self.path, *names)
        return AutomatonError(f"{path}{message}", pointer=path)

    def nothing(self, message: str, *names: object) -> NothingError:
        """Return an error about a part of the schema that allows no instances."""
        path = below(self.path, *names)
        return NothingError(f"{path}{message}", pointer=path)


def span(schema: Schema, minimum: str, maximum: str, scope: Scope) -> tuple[int, int | None]:
    """Return the checked bounds of a length. As everywhere in JSON Schema, 1.0 is a whole number."""
    bounds: dict[str, int] = {}
    for name in {minimum, maximum} & set(schema):
        value = schema[name]
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not is_whole or value < 0:
            raise scope.error(f" is {short_repr(value)}: expected a whole number, 0 or more", name)
        bounds[name] = int(value)
    low, high = bounds.get(minimum, 0), bounds.get(maximum)
    if high is not None and low > high:
        raise scope.nothing(f" allows nothing: it has {minimum} {low} above {maximum} {high}")
    return low, high


def types_of(schema: Schema, scope: Scope) -> list[str]:
    value = schema.get("type", [])
    types = [value] if isinstance(value, str) else value
    known = isinstance(types, list) and all(isinstance(name, str) and name in KEYWORDS for name in types)
    if not known or len(set(types)) < len(types) or ("type" in schema and not types):
        raise scope.error(f" is {short_repr(value)}: expected one or several of {', '.join(KEYWORDS)}", "type")
    return types


def type_of(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, float) and value.is_integer():
        return "integer"
    names = ((int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def check_keywords(schema: Schema, scope: Scope) -> None:
    """Raise AutomatonError for a keyword that restricts instances in a way that is not supported."""
    if several := next((name for name in DYNAMIC if name in schema), None):
        raise scope.error(f" is {short_repr(schema[several])}: expected one schema with this {DYNAMIC[several]}", several)
    if unknown := sorted(REFUSED & set(schema)):
        raise AutomatonError(
            f"{scope.path} has {', '.join(unknown)}, which is not supported", pointer=below(scope.path, unknown[0])
        )


def mapping_of(value: object, scope: Scope) -> Schema:
    if not isinstance(value, dict):
        raise scope.error(f" is {short_repr(value)}: expected a schema object")
    return value


def list_of(value: object, scope: Scope) -> list[object]:
    if not isinstance(value, list) or not value:
        raise scope.error(f" is {short_repr(value)}: expected a list that is not empty")
    return value


def names_of(value: object, scope: Scope) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise scope.error(f" is {short_repr(value)}: expected a list of property names")
    return value
