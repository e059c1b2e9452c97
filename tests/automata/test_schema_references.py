"""References of a JSON Schema: pointers, anchors and URIs lead where the specification says, and nowhere else."""

import json
from typing import Any

import pytest

from leafbeam.automata.json_references import below
from leafbeam.automata.json_schema import schema_language
from leafbeam.errors import AutomatonError

COLOUR: dict[str, Any] = {"enum": ["red", "blue"]}
TREE = {
    "$id": "https://example.com/tree",
    "$defs": {
        "size": {"$id": "size", "$anchor": "Size", "enum": ["S", "M"], "$comment": "https://example.com/size"},
        "box": {
            "$id": "boxes/box",
            "type": "object",
            "properties": {"inner": {"$ref": "#/$defs/x"}, "outer": {"$ref": "../tree#/$defs/x"}},
            "required": ["inner", "outer"],
            "$defs": {"x": {"const": "inner"}},
        },
        "x": {"const": "outer"},
    },
}

VALID: list[tuple[dict[str, Any], str]] = [
    ({"$ref": "#Colour", "$defs": {"c": {"$anchor": "Colour", **COLOUR}}}, '"red"'),
    ({"$ref": "#Colour", "$defs": {"c": {"$dynamicAnchor": "x", "$anchor": "Colour", **COLOUR}}}, '"red"'),
    ({"$ref": "#Colour", "definitions": {"c": {"$id": "#Colour", **COLOUR}}}, '"blue"'),  # before draft 2019-09
    ({"$ref": "#/$defs/c%6Flour", "$defs": {"colour": COLOUR}}, '"red"'),
    ({"$ref": "#/$defs/gr%C3%B6%C3%9Fe", "$defs": {"größe": COLOUR}}, '"red"'),
    ({"$ref": "#/$defs/größe", "$defs": {"größe": COLOUR}}, '"red"'),
    ({"$ref": "#/$defs/a~1b~0c%25", "$defs": {"a/b~c%": COLOUR}}, '"red"'),
    ({"$ref": "#/$defs/a%7E1b", "$defs": {"a/b": COLOUR}}, '"red"'),
    ({"$ref": "#/$defs/", "$defs": {"": COLOUR}}, '"red"'),
    ({"$ref": "#/$defs/list/anyOf/1", "$defs": {"list": {"anyOf": [{"type": "null"}, COLOUR]}}}, '"red"'),
    ({"$id": "https://example.com/a", "$ref": "https://example.com/a#/$defs/c", "$defs": {"c": COLOUR}}, '"red"'),
    ({"$id": "https://example.com/a#", "$ref": "https://example.com/a#/$defs/c", "$defs": {"c": COLOUR}}, '"red"'),
    ({"$id": "https://example.com/dir/a", "$ref": "a#/$defs/c", "$defs": {"c": COLOUR}}, '"red"'),
    ({"$id": "https://example.com/dir/a", "$ref": "/dir/a#C", "$defs": {"c": {"$anchor": "C", **COLOUR}}}, '"red"'),
    ({"$id": "urn:example:a", "$ref": "urn:example:a#/$defs/c", "$defs": {"c": COLOUR}}, '"red"'),
    ({"$id": "schema.json", "$ref": "schema.json#/$defs/c", "$defs": {"c": COLOUR}}, '"red"'),
    ({**TREE, "$ref": "size"}, '"S"'),
    ({**TREE, "$ref": "https://example.com/size#Size"}, '"S"'),
    ({**TREE, "$ref": "boxes/box"}, '{"inner":"inner","outer":"outer"}'),
    ({**TREE, "$ref": "#/$defs/box"}, '{"inner":"inner","outer":"outer"}'),
    ({**TREE, "$ref": "#/$defs/box/properties/inner"}, '"inner"'),
]


@pytest.mark.parametrize(("schema", "text"), VALID, ids=[json.dumps(schema)[:60] for schema, _ in VALID])
@pytest.mark.parametrize("door", ["mapping", "text"])
def test_references_lead_where_the_specification_says(schema: dict[str, Any], text: str, door: str) -> None:
    """T6: the same of a mapping and of its text, and as jsonschema resolves them."""
    jsonschema = pytest.importorskip("jsonschema")
    language = schema_language(json.dumps(schema) if door == "text" else schema, 10_000)
    assert language.accepts(text.encode())
    if "definitions" not in schema:
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    for other in ('"outer"', '"inner"', '"red"', '"S"', "null", '{"inner":"outer","outer":"outer"}'):
        if language.accepts(other.encode()) and "definitions" not in schema:
            assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(other))


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"$ref": "#colour", "$defs": {"c": {"$anchor": "Colour", **COLOUR}}}, r"'#colour' names no \$anchor"),
    ({"$ref": "#c", "const": {"$anchor": "c"}}, r"names no \$anchor"),
    ({"$ref": "#c", "$defs": {"x": {"const": {"$anchor": "c"}}}}, r"names no \$anchor"),
    ({"$ref": "#Colour", "$defs": {"c": {"$id": "inner", "$anchor": "Colour", **COLOUR}}}, r"names no \$anchor"),
    ({"$ref": "#/$defs/c%6", "$defs": {"co": COLOUR}}, "points to nothing"),
    ({"$ref": "#/$defs/%FF", "$defs": {"co": COLOUR}}, "expected a pointer into this schema"),
    ({"$ref": "#/$defs/a~2", "$defs": {"a~2": COLOUR}}, "points to nothing"),
    ({"$ref": "#/anyOf/01", "$defs": {}}, "points to nothing"),
    ({"$ref": "#/$defs/list/anyOf/2", "$defs": {"list": {"anyOf": [COLOUR, COLOUR]}}}, "points to nothing"),
    ({"$ref": "#/$defs/list/anyOf/-", "$defs": {"list": {"anyOf": [COLOUR, COLOUR]}}}, "points to nothing"),
    ({"$id": "https://example.com/a", "$ref": "https://example.com/b#/$defs/c", "$defs": {"c": COLOUR}}, "other documents"),
    ({"$id": "https://example.com/a", "$ref": "b", "$defs": {"c": COLOUR}}, "other documents"),
    ({"$ref": "#A", "$defs": {"a": {"$anchor": "A", "type": "null"}, "b": {"$anchor": "A", **COLOUR}}}, "has the name 'A' of"),
    ({"$ref": "#A", "$defs": {"a": {"$anchor": "A", "$ref": "#/$defs/b"}, "b": {"$ref": "#A"}}}, "leads back to itself"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/%61"}}}, "leads back to itself"),
    ({"$ref": "#/$defs/deep/odd", "$defs": {"deep": {"odd": {"$id": "x", **COLOUR}}}}, r"has an \$id where no schema"),
]


@pytest.mark.parametrize(("schema", "says"), INVALID, ids=[json.dumps(schema)[:60] for schema, _ in INVALID])
def test_references_that_lead_nowhere_are_named(schema: dict[str, Any], says: str) -> None:
    """T6: with the pointer of the reference."""
    with pytest.raises(AutomatonError, match=says) as refused:
        schema_language(schema, 10_000)
    assert refused.value.pointer is not None
    assert refused.value.pointer.startswith("#")


NAMES = ["a/b", "a~b", "a~1b", "a%6Fb", "a b", "größe", "日本", 'qu"ote', "back\\slash", "", "#", "?", "a|b<c>^`{}"]


@pytest.mark.parametrize("name", NAMES)
def test_the_pointer_of_an_error_leads_to_the_keyword(name: str) -> None:
    """T11: escaped, so that it may stand in a $ref as it is."""
    part = {"type": "array", "extends": {}}
    schema = {"type": "object", "properties": {name: {"type": "array", "items": part}}}
    with pytest.raises(AutomatonError, match="has extends") as refused:
        schema_language(schema, 10_000)
    pointer = refused.value.pointer
    assert pointer == below("#", "properties", name, "items", "extends")
    assert str(refused.value).startswith(pointer.removesuffix("/extends"))
    valid = {**schema, "properties": {name: {"type": "array", "items": {"type": "null"}}}}
    outer = {"$ref": pointer.replace("#", "#/$defs/inner").removesuffix("/extends"), "$defs": {"inner": valid}}
    assert schema_language(outer, 10_000).accepts(b"null")


RECURSIVE: list[tuple[dict[str, Any], bool]] = [
    ({"$recursiveAnchor": True, "type": "object", "properties": {"a": {"$recursiveRef": "#"}}}, True),
    ({"type": "object", "properties": {"a": {"$recursiveRef": "#"}}}, True),
    ({"type": "object", "properties": {"a": {"$dynamicRef": "#"}}}, True),
    (
        {
            "$id": "https://example.com/strict",
            "$dynamicAnchor": "node",
            "$ref": "tree",
            "unevaluatedProperties": False,
            "$defs": {
                "tree": {
                    "$id": "https://example.com/tree",
                    "$dynamicAnchor": "node",
                    "type": "object",
                    "properties": {"a": {"$dynamicRef": "#node"}},
                }
            },
        },
        False,
    ),
]


@pytest.mark.parametrize(("schema", "is_static"), RECURSIVE, ids=["anchor", "no anchor", "pointer", "two anchors"])
def test_a_dynamic_reference_that_can_lead_to_one_schema_only_is_an_ordinary_one(
    schema: dict[str, Any], is_static: bool
) -> None:
    if not is_static:
        with pytest.raises(AutomatonError):
            schema_language(schema, 10_000)
        return
    language = schema_language(schema, 10_000)
    for text, accepted in {"{}": True, '{"a":{"a":{}}}': True, '{"a":{"a":[]}}': False, '{"a":1}': False}.items():
        assert language.accepts(text.encode()) == accepted


POINTERS: list[tuple[dict[str, Any], str]] = [
    ({"type": "object", "properties": {"a/b": {"type": "thing"}}}, "#/properties/a~1b/type"),
    ({"type": "object", "properties": {"a": {"type": "string", "format": 6}}}, "#/properties/a/format"),
    ({"type": "array", "items": {"type": "string", "pattern": r"\b"}}, "#/items/pattern"),
    ({"type": "array", "items": {"type": "string", "pattern": "^(?i)a$"}}, "#/items/pattern"),
    ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": "a"}]}, "#/anyOf/1/minimum"),
    ({"type": "string", "minLength": 1.5}, "#/minLength"),
    ({"enum": ["a", float("nan")]}, "#/enum/1"),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "array", "items": 3}}}, "#/$defs/a~1b/items"),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"not": {"format": "date"}}]}, "#/prefixItems/1/not"),
    ({"type": "array", "items": {"type": "null"}, "minItems": 10**6}, "#"),
    (
        {"type": "object", "additionalProperties": {"type": "string", "maxLength": 10**7, "pattern": "a"}},
        "#/additionalProperties",
    ),
]


@pytest.mark.parametrize(("schema", "pointer"), POINTERS, ids=[pointer for _, pointer in POINTERS])
def test_every_error_of_a_schema_has_its_pointer(schema: dict[str, Any], pointer: str) -> None:
    """T11: also what is too large, and what stands behind a reference."""
    with pytest.raises(AutomatonError) as refused:
        schema_language(schema, 10_000)
    assert refused.value.pointer == pointer


def test_a_doubled_key_of_a_schema_is_named() -> None:
    """T6: JSON's readers would take the last one silently."""
    with pytest.raises(AutomatonError, match="'type' occurs twice"):
        schema_language('{"anyOf": [{"type": "null", "type": "boolean"}]}', 10_000)


def test_an_error_of_a_dynamic_reference_names_its_keyword() -> None:
    with pytest.raises(AutomatonError, match=r"names no \$anchor") as refused:
        schema_language({"properties": {"a": {"$dynamicRef": "#nowhere"}}, "type": "object"}, 1_000)
    assert refused.value.pointer == "#/properties/a/$dynamicRef"
