"""JSON Schemas for which people reported other implementations to write invalid texts, or to leave valid ones out."""

import json
from typing import Any

import jsonschema
import pytest

from leafbeam.automata.json_schema import schema_language
from leafbeam.errors import AutomatonError

_OBJECT = {"type": "object", "additionalProperties": False}
_KEYS = ["a(b)", 'a"b', "a\\b", "a\nb", "a.b*[c]", "é\u2028", ""]


@pytest.mark.parametrize(
    ("schema", "written", "not_written"),
    [
        pytest.param(
            {"type": "string"},
            ['"a\\tb"', '"\\\\"', '"\u2028"'],
            ['"a\tb"', '"\x00"', '"\x1f"', '"\\x"', '"\\u12"', '"\\ud800"'],
            id="control characters stand in strings as they are (xgrammar 286)",
        ),
        pytest.param(
            {"type": "string", "minLength": 1, "maxLength": 1},
            ['"a"', '"\\n"', '"\\""', '"\\\\"', '"😀"', '"\\/"'],
            ['""', '"ab"', '"\n"', '"😀😀"', '"\\ud83d"', '"e\u0301"'],
            id="strings of bounded length have no escapes, and count a pair twice (xgrammar 800)",
        ),
        pytest.param(
            {"type": "string", "minLength": 2, "maxLength": 2},
            ['"ab"', '"\\n\\n"', '"😀😀"'],
            ['"😀"', '"\\ud83d\\ude00"', '"a"'],
            id="a pair of surrogates counts as two characters (llguidance 88)",
        ),
        pytest.param(
            {"type": "object", "properties": {"a": {"const": "foo"}, "b": {"const": "bar"}}, "required": ["b"]},
            ['{"b":"bar"}', '{"a":"foo","b":"bar"}'],
            ['{"b":"bar","a":"BAD"}', '{"b":"bar","\\u0061":"BAD"}', '{"b":"bar","b":"x"}'],
            id="a property out of order counts as an additional one (guidance 1039)",
        ),
        pytest.param(
            {"type": "integer", "minimum": 3},
            ["3", "10", "99999999999999999999"],
            ["2", "03", "013", "-4", "3."],
            id="bounded integers have leading zeros (llama.cpp 7797)",
        ),
        pytest.param(
            {"type": "integer", "minimum": -123, "maximum": 42},
            ["-123", "0", "42"],
            ["-124", "43", "-00", "007", "+1"],
            id="negative bounds (llama.cpp 7797)",
        ),
        pytest.param(
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            ["0.5", "1", "1.0", "0.000001"],
            ["0", "0.0", "-0", "1.01", ".5", "1."],
            id="bounds of decimals (guidance 1023)",
        ),
        pytest.param({"type": "integer", "multipleOf": 5}, ["0", "5", "-10"], ["1", "-3"], id="multipleOf is left out"),
        pytest.param(
            {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
            ["[]", "[1,2]"],
            ["[1,1]", "[1,2,1]"],
            id="uniqueItems is left out (llama.cpp 7789)",
        ),
        pytest.param(
            {"oneOf": [{"type": "integer"}, {"type": "number", "maximum": 5}]},
            ["6"],
            ["2", "5.5"],
            id="one of two that overlap",
        ),
        pytest.param(
            {**_OBJECT, "properties": {key: {"type": "null"} for key in _KEYS}, "required": _KEYS},
            [json.dumps(dict.fromkeys(_KEYS), ensure_ascii=False)],
            ['{"ab":null}', "{}"],
            id="names of properties are read as patterns (outlines 724)",
        ),
        pytest.param(
            {"const": 'a\n"\\b/é\u2028'},
            [json.dumps('a\n"\\b/é\u2028', ensure_ascii=False)],
            ['"a\n\\"\\\\b/é\u2028"', '"a"'],
            id="constants are not escaped (outlines 935)",
        ),
        pytest.param(
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
            ['[1,"a"]', "[1]", "[]"],
            ['["a"]', '[1,"a",2]'],
            id="tuples have more items than they may",
        ),
    ],
)
def test_texts_of_reported_schemas(schema: dict[str, Any], written: list[str], not_written: list[str]) -> None:
    """Public reports: each case names its own."""
    language = schema_language(schema, 5_000)
    for text in written:
        assert language.accepts(text.encode()), text
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    for text in not_written:
        assert not language.accepts(text.encode()), text


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        pytest.param(
            {**_OBJECT, "required": ["z"], "additionalProperties": False},
            "requires 'z'",
            id="required, but no property (guidance 1029)",
        ),
        pytest.param({"type": "integer", "minimum": 5, "maximum": 3}, "allows no integer", id="nothing between the bounds"),
        pytest.param({"type": "string", "minLength": 5, "maxLength": 3}, "above maxLength", id="no length"),
        pytest.param({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems", id="llama.cpp 7789"),
        pytest.param(
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "minItems": 2}, "requires 2", id="items"
        ),
        pytest.param({"enum": []}, "not empty", id="no value"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_and_no_part_of_it_is_left_out(schema: dict[str, Any], says: str) -> None:
    """Public reports: keywords are left out silently, and texts are invalid."""
    with pytest.raises(AutomatonError, match=says.replace("$", r"\$")):
        schema_language(schema, 5_000)
