"""Keywords one by one, alone and together: what may be written is valid for jsonschema, and nothing else may be written."""

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam.automata.json_schema import compile_schema, schema_language
from leafbeam.automata.json_scope import INTERNAL, KNOWN, NOTES, REFUSED
from leafbeam.automata.json_text import FORMATS
from leafbeam.automata.network import determinized
from leafbeam.errors import AutomatonError
from tests.automata.languages import walked

_OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {}}}
_LIST: dict[str, Any] = {"type": "array", "items": {"enum": [1, 2, "a", [1]]}}
NODE = {"type": "object", "properties": {"v": {"type": "null"}, "next": {"$ref": "#/$defs/node"}}, "required": ["v"]}
KEYWORDS: list[dict[str, Any]] = [
    {**_OBJECT, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {**_OBJECT, "anyOf": [{"required": ["a", "b"]}, {"required": ["c"]}]},
    {**_OBJECT, "not": {"required": ["a", "b"]}},
    {**_OBJECT, "not": {"anyOf": [{"required": ["a"]}, {"required": ["d"]}]}},
    {**_OBJECT, "dependentRequired": {"a": ["b", "c"]}},
    {**_OBJECT, "dependentSchemas": {"a": {"properties": {"c": {"type": "boolean"}}, "required": ["c"]}}},
    {**_OBJECT, "minProperties": 2},
    {**_OBJECT, "minProperties": 1, "maxProperties": 2},
    {**_OBJECT, "propertyNames": {"pattern": "^[ac]"}},
    {**_OBJECT, "additionalProperties": {"type": "boolean"}},
    {**_OBJECT, "additionalProperties": {"type": "boolean"}, "minProperties": 2, "maxProperties": 3},
    {**_OBJECT, "patternProperties": {"^c": {"type": "string"}, "^x": {"type": "integer"}}},
    {**_OBJECT, "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"a": {"type": "integer"}, "b$": {"maximum": 5}}},
    {"type": "object", "patternProperties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
    {"type": "object", "patternProperties": {"a": {"type": "integer"}}, "required": ["ab", "c"]},
    {"type": "object", "propertyNames": {"maxLength": 1}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
    {
        "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
        "then": {"required": ["b"]},
        "else": {"maxProperties": 1},
        **_OBJECT,
    },
    {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "integer"}},
    {**_LIST, "uniqueItems": True},
    {**_LIST, "uniqueItems": True, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"enum": [1, 1.0, True, "1"]}, "uniqueItems": True},
    {"type": "array", "contains": {"type": "integer"}, "items": {"type": ["integer", "null"]}},
    {"type": "array", "contains": {"const": 1}},
    {**_LIST, "contains": {"type": "integer"}, "minContains": 2},
    {**_LIST, "contains": {"type": "integer"}, "maxContains": 1, "maxItems": 3},
    {**_LIST, "contains": {"type": "integer"}, "minContains": 0, "maxContains": 1, "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "integer"}, True], "contains": {"const": 2}, "items": {"type": "integer"}},
    {**_LIST, "not": {"contains": {"const": 1}}},
    {**_LIST, "not": {"contains": {"const": 1}, "minContains": 2, "maxContains": 2}},
    {**_OBJECT, "unevaluatedProperties": False},
    {"allOf": [_OBJECT, {"properties": {"d": {"type": "null"}}}], "unevaluatedProperties": {"type": "boolean"}},
    {**_OBJECT, "anyOf": [{"properties": {"d": {"enum": [1]}}, "required": ["d"]}, True], "unevaluatedProperties": False},
    {
        **_OBJECT,
        "if": {"properties": {"v": {"const": 1}}, "required": ["v"]},
        "then": {"properties": {"cx": True}},
        "else": {"properties": {"xa": True}},
        "unevaluatedProperties": False,
    },
    {**_OBJECT, "not": {"properties": {"a": {"const": 1}}}, "unevaluatedProperties": False},
    {**_OBJECT, "dependentSchemas": {"a": {"properties": {"d": True}}}, "unevaluatedProperties": False},
    {"oneOf": [_OBJECT, {"properties": {"d": True}, "required": ["d"], "type": "object"}], "unevaluatedProperties": False},
    {"allOf": [{**_OBJECT, "unevaluatedProperties": False}, {"properties": {"d": True}}]},
    {"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
    {"type": "array", "prefixItems": [{"type": "integer"}], "contains": {"const": 2}, "unevaluatedItems": {"type": "integer"}},
    {
        "anyOf": [{"prefixItems": [True, {"type": "integer"}]}, {"prefixItems": [True]}],
        "unevaluatedItems": False,
        "type": "array",
    },
    {"not": {"type": "array", "minItems": 1}},
    {"not": {"type": ["string", "integer"]}},
    {"not": {"enum": ["a", 1, None, [1], 2.5]}},
    {"type": "string", "not": {"const": "ab"}},
    {"type": "string", "not": {"pattern": "b"}, "maxLength": 3},
    {"type": "integer", "not": {"minimum": 2, "maximum": 4}},
    {"type": "number", "not": {"enum": [0, 5, 2.5]}, "minimum": -1, "maximum": 6},
    {"type": "string", "not": {"anyOf": [{"minLength": 2}, {"const": "a"}]}},
    {"type": "array", "items": {"type": "integer"}, "not": {"items": {"minimum": 2}}},
    {"not": {"properties": {"a": {"type": "integer"}}}, "type": "object"},
    {"not": {"not": {"type": "string", "maxLength": 1}}},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}, {"const": "ab"}]},
    {
        "oneOf": [
            {**_OBJECT, "required": ["a"]},
            {**_OBJECT, "required": ["b"]},
            {"type": "object", "properties": {"a": {"const": 1}}},
        ]
    },
    {"oneOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["b"]}], "type": "object"},
    {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "oneOf": [{"const": 1}, {"const": "a"}, {"type": "integer", "minimum": 1}],
    },
    {"allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"anyOf": [{"minimum": 2}, {"maxLength": 1}]}]},
    {"allOf": [{"pattern": "a"}, {"pattern": "b$"}, {"type": "string", "maxLength": 3}]},
    {"type": "integer", "multipleOf": 3},
    {"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 50},
    {"type": "number", "multipleOf": 0.5, "minimum": -3},
    {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"},
    {"type": "string", "pattern": "a", "maxLength": 3},
    {"type": "string", "pattern": '"', "minLength": 2, "maxLength": 3},
    {"type": "string", "format": "date", "pattern": "^2024"},
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {
        "$dynamicRef": "#node",
        "$defs": {"node": {**NODE, "$dynamicAnchor": "node", "properties": {"v": {}, "next": {"$dynamicRef": "#node"}}}},
    },
    {
        "$ref": "#/$defs/node",
        "$dynamicRef": "#/$defs/small",
        "$defs": {"node": NODE, "small": {"maxProperties": 1, "properties": {"v": True}}},
    },
    {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}},
    },
    {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2, "minLength": 3}, "b": {"type": "null"}}},
    {"type": "array", "items": {"allOf": [{"type": "string"}, {"type": "null"}]}},
    {"anyOf": [{"type": "string", "const": 3}, {"type": "null"}]},
]
PARTS: list[Any] = [
    *(None, True, 0, 1, 2, 3, 5, 2.5, -14, "", "a", "b", "ab", "aab", '"', 'a"', "2024-02-29", [], [1], [2, 1], [1, 2], [1, 1]),
    *([None], [[None], None], ["a", "ab"], {}, [3, None], [1, 2, "a"], [1, True]),
]
_NAMES = ["a", "b", "c", "ab", "cx", "xa", "d", "v", "next"]


def instances() -> list[Any]:
    """Values, and objects of up to three names."""
    rng = random.Random(0)
    objects: list[Any] = [
        dict(zip(names, (rng.choice(PARTS) for _ in names), strict=True))
        for count in (1, 2, 3)
        for names in itertools.combinations(_NAMES, count)
        for _ in range(6)
    ]
    nodes = [{"v": None, "next": {"v": None, "next": {"v": None}}}, {"v": None, "next": {}}, {"v": None, "next": {"v": None}}]
    return [*PARTS, *objects, *nodes, [[[None]]], [[[[1]]]]]


INSTANCES = instances()


@pytest.mark.parametrize("schema", KEYWORDS, ids=lambda schema: json.dumps(schema)[:70])
def test_only_valid_instances_may_be_written(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date"]))
    language = schema_language(schema, 50_000)
    rng = np.random.default_rng(0)
    walks = [text for text in (walked(language, rng) for _ in range(60)) if text is not None]
    assert walks
    for text in walks:
        assert validator.is_valid(json.loads(text)), text
    written = [value for value in INSTANCES if language.accepts(json.dumps(value).encode())]
    for value in written:
        assert validator.is_valid(value), value
    assert written or len(set(walks)) > 1


@pytest.mark.parametrize("seed", range(40))
def test_only_valid_instances_of_joined_keywords_may_be_written(seed: int) -> None:
    """Two of the schemas hold together, one of them or neither."""
    jsonschema = pytest.importorskip("jsonschema")
    rng = random.Random(seed)
    parts = rng.sample([schema for schema in KEYWORDS if "$defs" not in schema], 2)
    together = rng.choice([{"allOf": parts}, {"oneOf": parts}, {"allOf": [parts[0], {"not": parts[1]}]}])
    schema = rng.choice([together, {"type": "object", "properties": {"a": together, "b": parts[0]}, "required": ["a"]}])
    try:
        language = schema_language(schema, 50_000)
    except AutomatonError:
        return
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date"]))
    walks = (walked(language, np.random.default_rng(number)) for number in range(40))
    for text in filter(None, walks):
        assert validator.is_valid(json.loads(text)), (schema, text)
    for value in INSTANCES:
        for whole in (value, {"a": value}):
            if language.accepts(json.dumps(whole).encode()):
                assert validator.is_valid(whole), (schema, whole)


@pytest.mark.parametrize("bounds", [{}, {"minContains": 2}, {"maxContains": 1}, {"minContains": 0, "maxContains": 2}])
@pytest.mark.parametrize("sizes", [{}, {"minItems": 2}, {"minItems": 1, "maxItems": 3}])
@pytest.mark.parametrize("first", [{}, {"prefixItems": [{"enum": [1, "b"]}]}])
def test_every_list_that_contains_as_many_is_written(
    bounds: dict[str, Any], sizes: dict[str, Any], first: dict[str, Any]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = {"type": "array", **first, "items": {"enum": [1, 2, "a"]}, "contains": {"type": "integer"}, **bounds, **sizes}
    language, validator = schema_language(schema, 50_000), jsonschema.Draft202012Validator(schema)
    for count in range(5):
        for value in map(list, itertools.product([1, 2, "a", "b"], repeat=count)):
            assert language.accepts(json.dumps(value).encode()) == validator.is_valid(value), value


def test_before_draft_2019_a_list_contains_at_least_one_item() -> None:
    schema = {"type": "array", "items": {"enum": [1, "a"]}, "contains": {"const": 1}, "minContains": 0}
    for dialect, accepted in (("draft-07/schema#", False), ("draft/2020-12/schema", True)):
        language = schema_language({**schema, "$schema": f"http://json-schema.org/{dialect}"}, 1000)
        assert language.accepts(b'["a"]') == accepted


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_properties_of_the_alternative_that_holds_are_evaluated(keyword: str) -> None:
    parts = [{"properties": {"b": {"const": 1}}, "required": ["b"]}, {"properties": {"c": {"const": 2}}, "required": ["c"]}]
    schema = {"type": "object", "properties": {"a": {"const": 0}}, keyword: parts, "unevaluatedProperties": False}
    language = schema_language(schema, 1000)
    for text, accepted in ((b'{"a":0,"b":1}', True), (b'{"c":2}', True), (b'{"a":0}', False), (b'{"b":1,"c":3}', False)):
        assert language.accepts(text) == accepted, text


def test_a_schema_inside_itself_is_written_as_often_as_the_depth_says_and_a_note_says_so() -> None:
    schema = {"$ref": "#/$defs/node", "$defs": {"node": NODE}}
    for depth in range(4):
        compiled = compile_schema(schema, 10_000, max_depth=depth)
        for inside in range(5):
            text = '{"v":null,"next":' * inside + '{"v":null}' + "}" * inside
            assert determinized(compiled.language).accepts(text.encode()) == (inside <= depth)
        assert {"treatment": "bounded", "keyword": "$ref", "pointer": "#/$defs/node/properties/next", "depth": depth} in [
            note.as_json() for note in compiled.notes
        ]
    with pytest.raises(AutomatonError, match="leads back to itself"):
        schema_language(schema, 10_000, strict=True)


def test_ignored_keywords_and_formats_are_noted_and_a_strict_reading_refuses_them() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "colour", "x-order": 1}}}
    notes = [note.as_json() for note in compile_schema(schema, 1000).notes]
    assert notes == [{"treatment": "ignored", "keyword": name, "pointer": "#/properties/a"} for name in ("x-order", "format")]
    for name in ("x-order", "format"):
        part = {"type": "string", name: "colour"}
        with pytest.raises(AutomatonError, match=f"# has {name}"):
            schema_language(part, 1000, strict=True)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_beside_lengths_and_patterns(name: str) -> None:
    language = schema_language({"type": "string", "format": name}, 100_000)
    both = schema_language({"type": "string", "format": name, "maxLength": 40, "pattern": "^[^x]*$"}, 100_000)
    rng = np.random.default_rng(1)
    texts = list(filter(None, (walked(language, rng) for _ in range(40))))
    assert texts
    for text in texts:
        value = json.loads(text)
        assert both.accepts(text.encode()) == (len(value) <= 40 and "x" not in value), text


def test_the_page_lists_every_keyword_as_the_compiler_treats_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "generate-json.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*`) \| (supported|bounded|ignored|refused) \| (.*?) ?\|$", page, re.MULTILINE)
    treated = [(keyword, treatment) for names, treatment, _ in rows for keyword in re.findall(r"`(.*?)`", names)]
    assert len(dict(treated)) == len(treated)
    listed = {kind: {name for name, treatment in treated if treatment == kind} for kind in ("ignored", "refused")}
    assert set(dict(treated)) == KNOWN - INTERNAL
    assert listed == {"ignored": NOTES, "refused": REFUSED}
    (formats,) = [text for names, _, text in rows if names == "`format`"]
    assert set(re.findall(r"`(.*?)`", formats)) == set(FORMATS)
    used = json.dumps(KEYWORDS)
    kept = {name for name, treatment in treated if treatment in ("supported", "bounded")}
    old = {"$recursiveRef", "divisibleBy", "additionalItems", "dependencies", "exclusiveMinimum", "exclusiveMaximum"}
    assert {name for name in kept - old if f'"{name}":' not in used} <= {"prefixItems"}
