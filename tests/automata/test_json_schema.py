"""JSON Schemas as automata: whatever is walked out is valid JSON of the schema; what may be written is; the rest is refused."""

import json
import math
import warnings
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.automata import Automaton
from leafbeam.automata.json_schema import schema_language
from leafbeam.automata.json_text import Bound, decimals, integers
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError, LeafbeamError
from tests.fixtures.texts import BYTES

PERSON = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        'a.b"c\\': {"type": "null"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SUPPORTED: list[dict[str, Any]] = [
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer"},
    {"type": "integer", "minimum": -3, "exclusiveMaximum": 12.5},
    {"type": "number"},
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": r"^[a-c]{2}(-\d+)?$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": ["string", "null", "integer"], "maxLength": 3, "minimum": 5},
    {"enum": ["a.b", 'quote " and \\', 1, 2.5, None, True, {"x": [1, "é"]}, []]},
    {"type": "string", "enum": ["one", "two"]},
    {"const": {"deep": [{"er": "\n"}]}},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 0},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": "two"}]},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": "two"}], "items": False, "minItems": 1},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": {"type": "null"}, "minItems": 4},
    PERSON,
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "properties": {name: {"type": "boolean"} for name in "abc"}},
    {"type": "object", "properties": {name: {"type": "boolean"} for name in "abcd"}, "required": ["c"]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 0},
    {"anyOf": [{"type": "integer"}, {"type": "number"}, PERSON]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "null"}}, "required": ["kind"]},
            {"$ref": "#/$defs/b~1c"},
        ],
        "$defs": {"b/c": {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]}},
    },
    {"allOf": [{"type": "null"}]},
    {
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
        "$defs": {"leaf": {"type": "array", "items": {"type": "null"}, "maxItems": 1}},
    },
]


@cache
def automaton_of(text: str) -> Automaton:
    return Automaton.from_json_schema(text, BYTES)


def may_be_written(schema: dict[str, Any], text: str) -> bool:
    return list(text.encode()) in automaton_of(json.dumps(schema))


def valid(schema: dict[str, Any], value: Any) -> bool:
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.FormatChecker(formats=["date", "uuid"])
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value)


def walked(automaton: Automaton, rng: np.random.Generator) -> str:
    """A random text of the language; the longer it gets, the sooner it ends."""
    state, text = 0, bytearray()
    while True:
        allowed = automaton.allowed(state)
        if automaton.accepts(state) and (not len(allowed) or rng.random() < 0.3):
            return text.decode()
        if len(text) > 30:  # whatever closes something; a circle that never would is not among the schemas
            closing = [byte for byte in b'"]}' if byte in allowed]
            allowed = closing or allowed
        printable = [byte for byte in allowed if 32 <= byte < 127]
        token = int(rng.choice(printable if printable and rng.random() < 0.9 else allowed))
        text.append(token)
        state = automaton.next(state, token)


@pytest.mark.parametrize("schema", SUPPORTED, ids=lambda schema: json.dumps(schema)[:60])
def test_whatever_may_be_written_is_valid(schema: dict[str, Any]) -> None:
    rng = np.random.default_rng(len(json.dumps(schema)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(60):
            text = walked(automaton_of(json.dumps(schema)), rng)
            assert valid(schema, json.loads(text)), text


def instances(schema: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a schema, with properties in its order."""
    if "$ref" in schema:
        found: Any = root
        for name in schema["$ref"].split("/")[1:]:
            found = found[name.replace("~1", "/")]
        return instances(found, root)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return st.one_of([instances(part, root) for part in schema[key]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([of_type(kind, schema, root) for kind in kinds])


def of_type(kind: str, schema: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    plain = st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from('\n\t\b\f\r"\\/')
    if kind == "string" and "pattern" in schema:
        return st.from_regex(schema["pattern"].replace(r"\d", "[0-9]"), fullmatch=True)
    if kind == "string" and "format" in schema:
        given = {
            "date": st.dates().map(str),
            "uuid": st.uuids().map(str),
            "time": st.times().map(lambda time: f"{time.isoformat()}Z"),
            "date-time": st.datetimes().map(lambda time: f"{time.isoformat()}+01:30"),
        }
        return given[schema["format"]]
    if kind == "string":
        return st.text(plain, min_size=schema.get("minLength", 0), max_size=schema.get("maxLength", 6))
    if kind == "integer":
        highest = schema.get("maximum", math.floor(schema.get("exclusiveMaximum", 10**12)))
        return st.integers(schema.get("minimum", -(10**12)), highest)
    if kind == "array":
        first = [instances(part, root) for part in schema.get("prefixItems", [])]
        items = schema.get("items", False)
        rest = st.just([]) if items is False else st.lists(instances(items, root), max_size=3)
        low, high = schema.get("minItems", 0), schema.get("maxItems", 99)
        joined = st.tuples(st.tuples(*first), rest).map(lambda pair: [*pair[0], *pair[1]])
        shorter = st.tuples(joined, st.integers(0, 9)).map(lambda pair: pair[0][: max(low, len(pair[0]) - pair[1])])
        return shorter.filter(lambda value: low <= len(value) <= high)
    if kind == "object" and schema.get("properties"):
        parts = {name: instances(part, root) for name, part in schema["properties"].items()}
        must = set(schema.get("required", []))
        chosen = st.fixed_dictionaries(
            {name: part for name, part in parts.items() if name in must},
            optional={name: part for name, part in parts.items() if name not in must},
        )
        return chosen.map(lambda value: {name: value[name] for name in parts if name in value})
    if kind == "object":
        others = schema.get("additionalProperties")
        values = instances(others, root) if others else st.nothing()
        return st.dictionaries(st.text(plain, max_size=3), values, max_size=schema.get("maxProperties", 2) if others else 0)
    numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers()
    return {"null": st.none(), "boolean": st.booleans(), "number": numbers}[kind]


@pytest.mark.parametrize("schema", SUPPORTED, ids=lambda schema: json.dumps(schema)[:60])
def test_whatever_is_valid_may_be_written(schema: dict[str, Any]) -> None:
    @settings(max_examples=25)
    @given(instances(schema, schema))
    def check(value: Any) -> None:
        assert may_be_written(schema, json.dumps(value, ensure_ascii=False))
        assert may_be_written(schema, json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    check()


def test_what_is_not_valid_may_not_be_written() -> None:
    for text in ('{"name": "Ada", "age": 36}', '{"name":"Ada","a.b\\"c\\\\":null,"age":0}'):
        assert may_be_written(PERSON, text)
    for text in (
        '{"name": "Ada"}',
        '{"age": 36, "name": "Ada"}',
        '{"name": "Ada", "age": 121}',
        '{"name": "Augusta", "age": 36}',
        '{"name": "Ada", "age": 36,}',
        '{"name": "Ada", "age": 036}',
        '{"name": "A"a", "age": 36}',
        '{"name": "A\na", "age": 36}',
        '{"name": "Ada", "age": 36, "more": 1}',
        '{"name": "Ada", "age": 36} ',
        '{ "name": "Ada", "age": 36}',
    ):
        assert not may_be_written(PERSON, text)
    for day, real in (
        ("2024-02-29", True),
        ("2023-02-29", False),
        ("1900-02-29", False),
        ("2000-02-29", True),
        ("2023-04-31", False),
    ):
        assert may_be_written({"type": "string", "format": "date"}, f'"{day}"') == real


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("email", ["a.b@c-d.org", "x+1@ab.cd"], ["@a.bc", "a@", "a..b@cd.ef", ".a@cd.ef", "a@1.2"]),
        ("hostname", ["ab", "a-b.cd", "1.ab"], ["-a.bc", "ab-", "a..bc", "1.2", "a_b.cd"]),
        ("ipv4", ["0.0.0.0", "255.249.199.7"], ["256.1.1.1", "01.1.1.1", "1.1.1", "1.1.1.1.1"]),
        ("uri", ["http://ab.cd", "https://ab/x/y?z=1"], ["ftp://ab", "http:///x", "http://ab cd", "//ab.cd"]),
    ],
)
def test_texts_of_a_format_are_valid(name: str, valid: list[str], invalid: list[str]) -> None:
    schema = {"type": "string", "format": name}
    assert [text for text in (*valid, *invalid) if may_be_written(schema, json.dumps(text))] == valid


@settings(max_examples=100)
@given(st.one_of(st.none(), st.integers(-2000, 2000)), st.one_of(st.none(), st.integers(0, 4000)), st.data())
def test_integers_between_bounds_have_their_numerals_and_no_others(
    low: int | None, width: int | None, data: st.DataObject
) -> None:
    high = None if width is None else (low or 0) + width
    dfa = compile_pattern(integers(low, high), 10_000)
    near = [bound + step for bound in (low, high, 0, 10, -10, 999) if bound is not None for step in (-1, 0, 1)]
    for value in [*near, data.draw(st.integers(-5000, 5000)), data.draw(st.integers())]:
        inside = (low is None or low <= value) and (high is None or value <= high)
        assert dfa.accepts(str(value).encode()) == inside
    assert not any(dfa.accepts(text) for text in (b"", b"-", b"-0", b"00", b"01", b"+1", b"1.0"))


bounds_ = st.none() | st.builds(
    Bound, value=st.decimals(-200, 200, places=2) | st.integers(-5, 5).map(Decimal), strict=st.booleans()
)


@settings(max_examples=200)
@given(bounds_, bounds_)
def test_decimals_between_bounds_have_their_numerals_and_no_others(low: Bound | None, high: Bound | None) -> None:
    steps = [Decimal(step) * sign for step in ("0", "0.0001", "0.01", "0.3", "1", "12") for sign in (-1, 1)]
    near = {bound.value + step for bound in (low, high, Bound(value=Decimal(0))) if bound is not None for step in steps}
    inside = [
        value
        for value in near
        if (low is None or low.value < value or (low.value == value and not low.strict))
        and (high is None or value < high.value or (high.value == value and not high.strict))
    ]
    pattern = decimals(low, high)
    if not pattern:
        assert not inside
        return
    dfa = compile_pattern(pattern, 10_000)
    for value in near:
        text = f"{value.normalize():f}" if value else "0"
        assert dfa.accepts(text.encode()) == (value in inside), text
        padded = f"{text}0" if "." in text else f"{text}.0"
        assert value in inside or not dfa.accepts(padded.encode())
    assert not any(dfa.accepts(text) for text in (b"", b"-", b"-0", b"-0.0", b"00", b"+1", b"1.", b".5", b"1e0"))


DEEP: dict[str, Any] = {"type": "null"}
for _ in range(3000):
    DEEP = {"allOf": [DEEP]}
DOUBLING = {
    "$ref": "#/$defs/0",
    "$defs": {str(n): {"type": "array", "prefixItems": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(60)},
}
DOUBLING["$defs"]["60"] = {"type": "null"}
REFUSED: list[tuple[Any, str]] = [
    (3, "expected a schema object"),
    ("{", "not JSON"),
    ("[]", "expected a schema object"),
    ({"type": "strin"}, "expected one or several of"),
    ({"type": ["null", "null"]}, "expected one or several of"),
    ({"type": 3}, "expected one or several of"),
    ({"not": {"type": "null"}, "type": "null"}, "allows nothing"),
    ({"not": {"format": "date"}}, "expected keywords whose violation can be written"),
    ({"type": "integer", "multipleOf": 0}, "expected a number above 0"),
    ({"type": "integer", "multipleOf": 3, "minimum": 4, "maximum": 5}, "no number fits its bounds"),
    ({"type": "integer", "minimum": "3"}, "expected a number"),
    ({"type": "integer", "minimum": True}, "expected a number"),
    ({"type": "integer", "minimum": math.inf}, "expected a number"),
    ({"type": "integer", "minimum": -(10**400)}, "a number of more than 18 digits: expected a number between"),
    ({"type": "number", "exclusiveMaximum": 10**5000}, "a number of more than 18 digits: expected a number between"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "allows no integer"),
    ({"type": "number", "minimum": 3, "maximum": 2.5}, "allows no number: its bounds leave 3 to 2.5"),
    ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "exclusive bounds leave nothing"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "above maxLength"),
    ({"type": "string", "minLength": -1}, "whole number"),
    ({"type": "string", "maxLength": 1.5}, "whole number"),
    ({"type": "string", "format": []}, "expected the name of a format"),
    ({"type": "string", "pattern": "^a$", "minLength": 3}, "no text fits its pattern, minLength"),
    ({"type": "string", "pattern": "a^"}, "no text fits its pattern"),
    ({"type": "string", "maxLength": 10**7, "pattern": "a"}, "bound them more tightly"),
    ({"type": "string", "pattern": "^a(?!b)$"}, "refuses the pattern"),
    ({"type": "string", "pattern": 3}, "expected a pattern as text"),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "#/uniqueItems is true"),
    ({"type": "array", "items": {"type": "null"}, "uniqueItems": True, "minItems": 2}, "requires 2 of 1 value"),
    ({"type": "array", "prefixItems": [{"type": "null"}], "minItems": 2}, "requires 2"),
    ({"type": "array", "prefixItems": []}, "that is not empty"),
    ({"type": "object", "properties": []}, "expected a schema object"),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"], "additionalProperties": False},
        "requires 'b'",
    ),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "it requires 'a', which is false"),
    ({"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 2}, "names may be repeated"),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 3}, "no object has what it requires"),
    ({"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "b"}, "required": ["a"]}, "requires 'a'"),
    ({"allOf": [{"type": "null"}, {"type": "string"}]}, "allows nothing: its types are null and string"),
    ({"allOf": [{"enum": [1]}, {"const": True}]}, "no value is in both"),
    ({"type": "string", "allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}, "no text fits its pattern"),
    ({"allOf": [{"minimum": 3}, {"minimum": "4"}]}, "not both numbers"),
    (
        {"allOf": [{"prefixItems": [{}], "items": {}}, {"items": {"type": "null"}}]},
        "joins prefixItems of one schema with items",
    ),
    ({"allOf": [{"anyOf": [{"type": "null"}]}, {"anyOf": [{"type": "string"}]}]}, "allows nothing"),
    ({"anyOf": [False, False]}, "allows nothing"),
    (False, "allows nothing"),
    ({"if": {}, "then": False, "type": "null"}, "allows nothing"),
    ({"type": []}, "expected one or several of"),
    ({"enum": ["a", "bc"], "minLength": 3}, "no value of its enum fits minLength"),
    ({"allOf": [{"$ref": "#"}, {"type": "null"}]}, "leads back to itself"),
    ({"type": "object", "properties": {"a": {"type": "null"}}, "required": "a"}, "list of property names"),
    ({"type": "object", "properties": {"a": {"type": "array", "extends": {}}}}, "#/properties/a has extends"),
    ({"\0not": []}, "expected keys without NUL"),
    ({"anyOf": []}, "that is not empty"),
    ({"oneOf": [{"type": "integer"}, {"type": "integer"}]}, "allows nothing"),
    ({"oneOf": [{"type": "object", "properties": {}, "required": 3}, {"type": "object"}]}, "list of property names"),
    ({"enum": []}, "that is not empty"),
    ({"enum": [None, 1], "type": "string"}, "no value of its enum is of type 'string'"),
    ({"const": 1.5, "type": "integer"}, "no value of its const is of type 'integer'"),
    ({"enum": [math.nan]}, "no JSON text"),
    ({"enum": ["\ud800"]}, "no JSON text"),
    ({"enum": [b"a"]}, "no JSON text"),
    ({"$ref": "#/$defs/a"}, "points to nothing"),
    ({"$ref": "http://example.com"}, "pointer into this schema"),
    ({"$ref": 3}, "pointer into this schema"),
    ({"$ref": "#"}, "leads back to itself"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}},
        "allows 0 items and requires 1",
    ),
    (DEEP, "too deeply"),
    ("[" * 100_000, "too deeply"),
    (DOUBLING, "unrolls to"),
]


@pytest.mark.parametrize(("schema", "match"), REFUSED, ids=[match for _, match in REFUSED])
def test_what_a_pattern_cannot_hold_to_is_refused_by_name(schema: Any, match: str) -> None:
    with pytest.raises(AutomatonError, match=match):
        Automaton.from_json_schema(schema, BYTES, max_states=100_000)


ANY_VALUES: list[Any] = [None, True, -1.5e3, 7, "", 'a"b', [], {}, [1, "a", None, [[]]], {"a": {"b": [1]}, "": "x"}]
OPEN: list[tuple[Any, list[Any], list[Any]]] = [
    (True, ANY_VALUES, []),
    ({"title": "x", "x-order": 3, "links": [], "nullable": True}, ANY_VALUES, []),
    ({"type": "object"}, [{}, {"a": [1, {"b": None}]}], ["a", []]),
    ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    ({"type": "array"}, [[], [1, {"a": "b"}]], [{}, 1]),
    ({"type": "array", "items": True, "uniqueItems": False}, [[1, 1]], [{}]),
    ({"type": "string", "minimum": 3, "items": {"type": "null"}}, ["", "ab"], [5]),
    ({"minLength": 2}, ["ab", 1, None, [1], {"a": 1}], ["a"]),
    ({"properties": {"a": {"type": "null"}}, "required": ["a"]}, [{"a": None}, "x", 3, [{}]], [{}, {"a": 1}]),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, [{"b": 1}, {"a": [], "b": "c"}], [{"a": 1}]),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}}, [{}, {"a": 3}], [{"b": 1}]),
    ({"type": "object", "properties": {"a": {}, "b": False}}, [{"a": 1}, {}], [{"b": 1}]),
    ({"type": "object", "properties": {"a": {}}, "patternProperties": {"^x-": {"type": "null"}}}, [{"a": 1}], [{"x-a": 1}]),
    ({"type": "object", "properties": {"a": {}}, "maxProperties": 1}, [{"a": 1}, {}], []),
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, [4], [3]),
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": False}, [3, 4], [2]),
    ({"type": "array", "items": [{"const": 1}, {"const": 2}]}, [[], [1], [1, 2]], [[2]]),
    ({"anyOf": [{"type": "string"}, False, {"type": "null"}], "maxLength": 2}, ["ab", None], ["abc", 1]),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}], "minLength": 1, "minimum": 5}, ["a", 5], ["", 4]),
    ({"allOf": [{"type": "integer", "minimum": 2}, {"type": "number", "maximum": 4}, True]}, [2, 3, 4], [1, 5, 2.5]),
    ({"enum": ["a", "bcd", 7], "minLength": 2}, ["bcd", 7], ["a"]),
    ({"allOf": [{"enum": [1, 2, "a"]}, {"enum": [1.0, "a", True]}]}, [1, "a"], [2, True]),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}},
            ],
            "properties": {"c": {"type": "boolean"}},
        },
        [{"c": True, "a": 3, "b": None}, {"a": 4}],
        [{"a": 2}, {}, {"a": 3, "b": 1}],
    ),
    (
        {"allOf": [{"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]},
        [{}, {"a": 1}],
        [{"b": 1}],
    ),
    (
        {"$ref": "#/$defs/named", "required": ["a"], "$defs": {"named": {"type": "object", "properties": {"a": {}}}}},
        [{"a": 1}],
        [{}],
    ),
    (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}},
            "required": ["kind"],
            "anyOf": [{"properties": {"kind": {"const": "a"}}}, {"properties": {"x": {"type": "null"}}, "required": ["x"]}],
        },
        [{"kind": "a"}, {"kind": "b", "x": None}],
        [{"kind": "b"}],
    ),
]


@pytest.mark.parametrize(("schema", "instances", "others"), OPEN, ids=[json.dumps(case[0])[:60] for case in OPEN])
def test_what_a_schema_leaves_open_may_be_anything(schema: Any, instances: list[Any], others: list[Any]) -> None:
    is_old = schema is not True and ("exclusiveMinimum" in schema or isinstance(schema.get("items"), list))
    for value in instances:
        assert is_old or valid(schema, value), value
        assert may_be_written(schema, json.dumps(value)), value
    for value in others:
        assert not may_be_written(schema, json.dumps(value)), value
    rng = np.random.default_rng(3)
    for _ in range(40):
        value = json.loads(walked(automaton_of(json.dumps(schema)), rng))
        assert is_old or valid(schema, value), value


def test_the_depth_of_what_is_not_described_is_bounded() -> None:
    for depth in range(4):
        language = schema_language({}, 10_000, max_depth=depth)
        assert language.accepts(b"[" * depth + b"]" * depth or b"1")
        assert not language.accepts(b"[" * (depth + 1) + b"1" + b"]" * (depth + 1))
    with pytest.raises(AutomatonError, match="max_depth is -1"):
        schema_language({}, 10_000, max_depth=-1)


def test_a_strict_reading_refuses_what_json_schema_does_not_define() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null", "x-order": 1}}}
    assert schema_language(schema, 1000).num_states
    with pytest.raises(AutomatonError, match="#/properties/a has x-order, which JSON Schema does not define"):
        schema_language(schema, 1000, strict=True)


@pytest.mark.parametrize("schema", SUPPORTED, ids=lambda schema: json.dumps(schema)[:60])
def test_any_change_to_a_schema_gives_an_automaton_or_an_error(schema: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    junk: list[Any] = [None, True, -1, 2, 1.5, "", "null", [], ["a"], {}, {"type": "null"}, [[]], {"enum": [[]]}]

    def changed(value: Any) -> Any:
        if rng.random() < 0.15:
            return junk[rng.integers(len(junk))]
        if isinstance(value, dict):
            return {name: changed(part) for name, part in value.items() if rng.random() < 0.95}
        return [changed(part) for part in value] if isinstance(value, list) else value

    for _ in range(40):
        other = changed(schema)
        try:
            language = schema_language(other, 10_000)
        except LeafbeamError:
            continue
        assert isinstance(other, (dict, str, bool))
        assert language.num_states
