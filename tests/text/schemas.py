"""JSON Schemas as people publish them: families made here, and hand-written ones in the style of JSONSchemaBench."""

from itertools import product
from typing import Any

from leafbeam.automata.json_text import FORMATS

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
SHORT: Schema = {"type": "string", "maxLength": 6}
INTEGER: Schema = {"type": "integer", "minimum": 0, "maximum": 120}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
COLOUR: Schema = {"enum": ["red", "green", "blue"]}
DATE: Schema = {"type": "string", "format": "date"}
UUID: Schema = {"type": "string", "format": "uuid"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
SCALARS = {"s": SHORT, "i": INTEGER, "n": NUMBER, "b": BOOLEAN, "z": NULL, "e": COLOUR, "d": DATE}


def object_of(properties: Schema, required: list[str] | None = None, **others: Any) -> Schema:
    """An object without other properties; all of its own are required unless it says which."""
    named = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": named, "additionalProperties": False, **others}


def like(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def list_of(items: Schema, low: int, high: int) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def flat() -> list[Schema]:
    pairs = [{first: SCALARS[first], second: SCALARS[second]} for first, second in product(SCALARS, "sie") if first != second]
    return [object_of(pair) for pair in pairs] + [object_of(SCALARS), {"type": "object", "properties": {"a": SHORT}}]


def optional() -> list[Schema]:
    fields: Schema = {"id": INTEGER, "name": SHORT, "colour": COLOUR, "ok": BOOLEAN}
    choices = product((False, True), repeat=len(fields))
    return [object_of(fields, [name for name, must in zip(fields, chosen, strict=True) if must]) for chosen in choices]


def nested() -> list[Schema]:
    found: list[Schema] = []
    inner: Schema = INTEGER
    for depth in range(6):
        inner = object_of({f"level_{depth}": inner, "ok": BOOLEAN}, [f"level_{depth}"])
        found.append(inner)
    wide = {f"part_{index}": object_of({"value": SCALARS[kind]}) for index, kind in enumerate("sinb")}
    return [*found, object_of(wide), object_of({"lines": {"type": "array", "items": object_of({"sku": SHORT}), "maxItems": 2}})]


def arrays() -> list[Schema]:
    bounds: list[Schema] = [{"maxItems": 3}, {"minItems": 1, "maxItems": 1}, {"minItems": 2, "maxItems": 4}, {"maxItems": 0}]
    simple = [{"type": "array", "items": SCALARS[kind], **bound} for kind, bound in product("sineb", bounds)]
    matrix = {"type": "array", "items": {"type": "array", "items": BOOLEAN, "minItems": 2, "maxItems": 2}, "maxItems": 3}
    return [
        *simple,
        matrix,
        {"type": "array", "items": BOOLEAN},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    ]


def tuples() -> list[Schema]:
    pairs = [{"type": "array", "prefixItems": [SCALARS[a], SCALARS[b]], "items": False} for a, b in product("sie", "nbd")]
    return [
        *pairs,
        {"type": "array", "prefixItems": [COLOUR], "items": INTEGER, "maxItems": 3},
        {"type": "array", "prefixItems": [COLOUR, BOOLEAN], "minItems": 1, "items": False},
    ]


def values() -> list[Schema]:
    lists: list[list[Any]] = [
        ["a"],
        ["yes", "no", "don't know"],
        ['say "hi"', "back\\slash", "tab\there"],
        ["naïve", "日本語", "\U0001f600"],
        [1, 2, 3],
        [1.5, -2.25, 1e10],
        [True, False],
        [None, "none"],
        [{"a": 1}, {"a": 2, "b": [1, 2]}],
        [[1, 2], [], ["x"]],
        ["(.*)", "a|b", "[x]", "{2}", "$^"],
        ["", " ", "  "],
    ]
    return [{"enum": one} for one in lists] + [{"const": one[0]} for one in lists]


def patterns() -> list[Schema]:
    found = [
        "^[0-9]{5}(-[0-9]{4})?$",
        "^[A-Z]{2}-[0-9]{4}$",
        "^#[0-9a-fA-F]{6}$",
        r"^\d+\.\d+\.\d+$",
        r"^v?\d{1,2}(\.\d{1,2}){0,2}$",
        "^(mon|tue|wed|thu|fri|sat|sun)$",
        r"^\+?[0-9]{7,12}$",
        "^[a-z][a-z0-9_]{0,10}$",
        "^[a-z0-9]+(-[a-z0-9]+)*$",
        r"^[a-z]{2,8}@[a-z]{2,8}\.(com|org)$",
        "^(https?)://[a-z]{1,8}(/[a-z]{0,5}){0,2}$",
        "^([01][0-9]|2[0-3]):[0-5][0-9]$",
        r"^(\d{1,3}\.){3}\d{1,3}$",
        "^[ACGT]{4,12}$",
        "^(GET|POST|PUT)$",
        '^[^"\\\\\\x00-\\x1f]{1,5}$',
        "^0x[0-9a-f]{1,8}$",
        "^(EUR|USD) [0-9]{1,4},[0-9]{2}$",
    ]
    return [{"type": "string", "pattern": one} for one in found]


def formats() -> list[Schema]:
    found = [{"type": "string", "format": name} for name in FORMATS]
    return [*found, *(object_of({"when": one, "who": SHORT}) for one in found)]


def references() -> list[Schema]:
    money = object_of({"amount": INTEGER, "currency": {"enum": ["EUR", "USD"]}})
    address = object_of({"street": SHORT, "city": SHORT, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, ["city"])
    found: list[Schema] = []
    for where in ("$defs", "definitions"):
        parts = {"money": money, "address": address, "tag": COLOUR, "line": object_of({"price": {"$ref": f"#/{where}/money"}})}
        for name in parts:
            found.append({**object_of({"one": {"$ref": f"#/{where}/{name}"}}), where: parts})
        both = {"from": {"$ref": f"#/{where}/address"}, "to": {"$ref": f"#/{where}/address"}}
        found.append({**object_of(both), where: parts, "$schema": "https://json-schema.org/draft/2020-12/schema"})
        found.append({"type": "array", "items": {"$ref": f"#/{where}/line"}, "maxItems": 2, where: parts})
    return found


def alternatives() -> list[Schema]:
    cat, dog = object_of({"kind": {"const": "cat"}, "lives": INTEGER}), object_of({"kind": {"const": "dog"}, "good": BOOLEAN})
    kinds: list[Schema] = [
        SHORT,
        INTEGER,
        BOOLEAN,
        NULL,
        COLOUR,
        object_of({"x": INTEGER}),
        {"type": "array", "items": NULL, "maxItems": 1},
    ]
    any_of = [{"anyOf": [first, second]} for number, first in enumerate(kinds) for second in kinds[number + 1 :]]
    return [
        *any_of,
        {"oneOf": [cat, dog]},
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 1, "maximum": 9}]},
        {"allOf": [cat]},
        object_of({"pet": {"oneOf": [cat, dog]}, "name": {"anyOf": [SHORT, NULL]}}),
        {"type": "array", "items": {"oneOf": [cat, dog]}, "maxItems": 2},
    ]


def bounds() -> list[Schema]:
    pairs = [(0, 0), (0, 9), (7, 12), (-5, 5), (-120, -7), (95, 105), (1, 1000), (0, 65535), (-1, 0), (999, 1001), (1900, 2100)]
    found: list[Schema] = [{"type": "integer", "minimum": low, "maximum": high} for low, high in pairs]
    found += [{"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1} for low, high in pairs[:5]]
    found += [{"type": "integer", "minimum": 2.5, "maximum": 7.25}, {"type": "integer"}, {"type": "integer", "minimum": 10}]
    return [*found, {"type": "integer", "maximum": -3}, {"type": "number"}, object_of({"port": found[7], "host": SHORT})]


def numbers() -> list[Schema]:
    pairs = [(0, 1), (0, 5), (-90, 90), (-180, 180), (0.5, 0.75), (-1.5, -0.25), (-0.1, 0.1), (99.9, 100.1), (3, 3), (0, 1e6)]
    found: list[Schema] = [{"type": "number", "minimum": low, "maximum": high} for low, high in pairs]
    found += [{"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in pairs if low < high]
    found += [{"type": "number", "minimum": 0}, {"type": "number", "exclusiveMinimum": 0}, {"type": "number", "maximum": -2.5}]
    point = {"lat": found[2], "lon": found[3]}
    return [*found, object_of(point), object_of({"price": found[-2], "share": found[0]}, ["price"]), list_of(found[0], 1, 3)]


def unions() -> list[Schema]:
    pairs = [("string", "null"), ("integer", "null"), ("boolean", "null"), ("number", "boolean"), ("string", "integer")]
    found: list[Schema] = [{"type": list(pair), **({"maxLength": 5} if "string" in pair else {})} for pair in pairs]
    return [*found, object_of({"note": found[0], "count": found[1]}), {"type": "array", "items": found[4], "maxItems": 3}]


def maps() -> list[Schema]:
    kinds = [INTEGER, BOOLEAN, COLOUR, {"type": "array", "items": BOOLEAN, "maxItems": 1}]
    return [{"type": "object", "additionalProperties": kind, "maxProperties": 2} for kind in kinds]


def strings() -> list[Schema]:
    lengths: list[Schema] = [
        {},
        {"maxLength": 0},
        {"maxLength": 1},
        {"minLength": 1, "maxLength": 3},
        {"minLength": 4, "maxLength": 4},
    ]
    return [{"type": "string", **length} for length in lengths] + [object_of({"a": STRING, "b": STRING})]


def published() -> list[Schema]:
    """In the style of function calls, configuration files and records."""
    point = object_of({"lat": NUMBER, "lon": NUMBER})
    return [
        # functions of assistants
        object_of({"location": SHORT, "unit": one_of("celsius", "fahrenheit")}, ["location"]),
        object_of({"query": SHORT, "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10}}, ["query"]),
        object_of({"from": like("[A-Z]{3}"), "to": like("[A-Z]{3}"), "date": DATE}),
        object_of(
            {"title": SHORT, "start": {"type": "string", "format": "date-time"}, "guests": list_of(SHORT, 0, 2)}, ["start"]
        ),
        object_of({"to": SHORT, "subject": SHORT, "cc": list_of(SHORT, 0, 1)}, ["to"]),
        object_of({"expression": like("[0-9]+( [+*/-] [0-9]+)*")}),
        # configuration
        object_of({"name": SHORT, "on": one_of("push", "pull_request"), "runs-on": {"const": "ubuntu"}}, ["on", "runs-on"]),
        object_of({"limits": object_of({"cpu": like("[0-9]{1,4}m"), "memory": like("[0-9]{1,4}[MG]i")})}),
        object_of({"httpGet": object_of({"path": like("/[a-z]{0,8}"), "port": PORT}), "periodSeconds": INTEGER}, ["httpGet"]),
        object_of({"ports": list_of(like("[0-9]{2,5}:[0-9]{2,5}"), 0, 2), "restart": one_of("no", "always", "on-failure")}),
        object_of({"name": like("[a-z0-9-]{1,12}"), "version": like(r"\d{1,2}\.\d{1,2}\.\d{1,2}"), "private": BOOLEAN}),
        object_of({"compilerOptions": object_of({"strict": BOOLEAN, "target": one_of("ES5", "ESNext")}, [])}, []),
        object_of({"flag": SHORT, "enabled": BOOLEAN, "rollout": {"type": "integer", "minimum": 0, "maximum": 100}}),
        object_of({"log": object_of({"level": one_of("debug", "warn"), "file": {"type": ["string", "null"], "maxLength": 6}})}),
        # records
        object_of({"id": UUID, "email": like(r"[a-z]{1,6}@[a-z]{1,6}\.org"), "roles": list_of(one_of("admin", "user"), 1, 2)}),
        object_of({"lines": list_of(object_of({"sku": SHORT, "quantity": INTEGER, "price": NUMBER}), 1, 2), "paid": BOOLEAN}),
        object_of({"type": {"const": "Point"}, "coordinates": list_of(NUMBER, 2, 2)}),
        object_of({"device": SHORT, "reading": object_of({"celsius": NUMBER, "battery": INTEGER}, ["celsius"])}),
        object_of({"title": STRING, "year": {"type": "integer", "minimum": 1900, "maximum": 2030}}),
        object_of(
            {"patient": object_of({"born": DATE, "sex": one_of("f", "m", "x")}), "codes": list_of(like("[A-Z][0-9]{2}"), 0, 2)}
        ),
        object_of({"route": list_of(point, 1, 2)}),
        object_of(
            {"columns": list_of(object_of({"name": SHORT, "type": one_of("int", "text"), "null": BOOLEAN}, ["name"]), 1, 2)}
        ),
        object_of({"answer": one_of("A", "B", "C", "D"), "confidence": {"type": "integer", "minimum": 0, "maximum": 10}}),
        object_of({"thought": STRING, "answer": COLOUR}, description="A chain of thought", title="Reasoning"),
        object_of({"entities": list_of(object_of({"text": SHORT, "label": one_of("PER", "ORG", "LOC")}), 0, 2)}),
        object_of({"rows": list_of({"type": "array", "prefixItems": [SHORT, INTEGER], "items": False, "minItems": 2}, 0, 2)}),
    ]


FAMILIES: dict[str, list[Schema]] = {
    family.__name__: family()
    for family in (
        flat, optional, nested, arrays, tuples, values, patterns, formats, references, alternatives, bounds, numbers, unions,
        maps, strings, published,
    )
}  # fmt: skip

# What this language of schemas lacks, and the place that the error names.
UNSUPPORTED: list[tuple[Any, str]] = [
    (False, "allows nothing"),
    ({"type": "thing"}, "#/type"),
    ({"type": "string", "format": "regex"}, "'regex', which is not supported"),
    ({"type": "string", "pattern": "^(?=a)b$"}, "no text fits its pattern"),
    ({"type": "string", "pattern": "a(?=b)"}, "#/pattern"),
    ({"type": "string", "pattern": "^a$", "minLength": 3}, "no text fits its pattern, minLength"),
    ({"type": "string", "minLength": 4, "maxLength": 3}, "above maxLength"),
    ({"type": "string", "maxLength": -1}, "maxLength"),
    ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "allows no number"),
    ({"type": "number", "multipleOf": 0}, "#/multipleOf"),
    ({"type": "integer", "multipleOf": 10**6}, "#/multipleOf"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "allows no integer"),
    ({"type": "array", "items": SHORT, "uniqueItems": True}, "#/uniqueItems"),
    ({"type": "array", "contains": BOOLEAN, "minContains": 2, "maxItems": 1}, "no list has as many items"),
    ({"type": "array", "items": BOOLEAN, "minItems": 3, "maxItems": 2}, "minItems 3 above"),
    ({"type": "object", "patternProperties": {"(a": BOOLEAN}}, "patternProperties"),
    ({"allOf": [{"anyOf": [NULL, BOOLEAN], "unevaluatedProperties": False}, BOOLEAN]}, "unevaluatedProperties beside anyOf"),
    ({"type": "object", "properties": {"a": BOOLEAN}, "required": ["b"], "additionalProperties": False}, "requires 'b'"),
    ({"type": "object", "properties": {"a": BOOLEAN}, "minProperties": 2}, "no object has what it requires"),
    ({"type": "string", "allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}, "no text fits its pattern"),
    ({"oneOf": [COLOUR, COLOUR]}, "allows nothing"),
    ({"not": {"type": "array", "uniqueItems": True}, "type": "array"}, "allows nothing"),
    ({"if": BOOLEAN, "then": NULL, "type": "boolean"}, "allows nothing"),
    ({"enum": []}, "#/enum"),
    ({"anyOf": []}, "#/anyOf"),
    ({"$ref": "https://example.com/other.json"}, "a pointer into this schema"),
    ({"$ref": "#/$defs/missing"}, "points to nothing"),
    (object_of({"child": {"$ref": "#"}}), "requires 'child'"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "leads back to itself"),
    ({"type": "string", "maxLength": 10**7, "pattern": "a"}, "bound them more tightly"),
    ({"enum": ["\ud800"]}, "no JSON text"),
]  # fmt: skip
