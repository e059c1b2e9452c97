"""Random schemas: what may be written is valid for jsonschema, and instances of a schema may be written."""

import json
import random
from typing import Any

import numpy as np
import pytest

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_schema import schema_language
from leafbeam.errors import AutomatonError
from tests.automata.languages import walked

WORDS = ["a", "b", "ab", "a/b", "é", "x y", "null", "0", ""]
VALUES: list[Any] = ["a", "ab", 1, 1.0, 2.5, -3, None, True, False, [], [1, "a"], {}, {"a": None}, {"a": [1], "b": {"c": "d"}}]
LEAVES: list[dict[str, Any]] = [
    {"type": "string"}, {"type": "string", "maxLength": 2}, {"type": "string", "pattern": "^[ab]{1,3}$"}, {"type": "null"},
    {"type": "integer"}, {"type": "integer", "minimum": -2, "maximum": 11}, {"type": "number", "minimum": 0.5, "maximum": 3},
    {"type": "boolean"}, {"type": ["string", "null"]}, {"type": ["integer", "boolean"], "minimum": 3},
    {"type": "string", "format": "date"},
]  # fmt: skip


def random_schema(rng: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    kind = rng.choice(
        ["leaf", "enum", "const"] if depth == 0 else ["leaf", "enum", "array", "tuple", "object", "map", "any", "ref"]
    )

    def part() -> dict[str, Any]:
        return random_schema(rng, depth - 1, names)

    if kind == "leaf":
        return rng.choice(LEAVES)
    if kind in ("enum", "const"):
        chosen = rng.sample(VALUES, rng.randint(1, 5))
        types = rng.choice([None, "string", ["integer", "null"], "number", ["object", "array", "boolean"]])
        schema: dict[str, Any] = {"enum": chosen} if kind == "enum" else {"const": chosen[0]}
        return schema if types is None else {**schema, "type": types}
    if kind == "array":
        low = rng.randint(0, 2)
        return {"type": "array", "items": part(), "minItems": low, "maxItems": low + rng.randint(0, 3)}
    if kind == "tuple":
        return {
            "type": "array",
            "prefixItems": [part() for _ in range(rng.randint(1, 3))],
            "items": rng.choice([False, part()]),
        }
    if kind == "object":
        fields = rng.sample(WORDS, rng.randint(1, 4))
        required = [name for name in fields if rng.random() < 0.4]
        return {"type": "object", "properties": {name: part() for name in fields}, "required": required}
    if kind == "map":
        return {"type": "object", "additionalProperties": part(), "maxProperties": rng.randint(0, 3)}
    if kind == "any":
        return {"anyOf": [part() for _ in range(rng.randint(1, 3))]}
    return {"$ref": rng.choice(names)}


def with_references(rng: random.Random) -> dict[str, Any]:
    names = ["#/$defs/one", "#Two", "#/$defs/thr%65e", "https://example.com/s#/$defs/one"]
    parts = {
        "one": random_schema(rng, 0, names),
        "two": {"$anchor": "Two", **random_schema(rng, 0, names)},
        "three": random_schema(rng, 0, names),
    }
    return {"$id": "https://example.com/s", **random_schema(rng, 3, names), "$defs": parts}


def language_of(schema: Any) -> ByteDFA | None:
    """The language, None where a part allows nothing."""
    try:
        return schema_language(schema, 50_000)
    except AutomatonError as error:
        if "allows nothing" not in str(error):
            raise
        return None


@pytest.mark.parametrize("seed", range(60))
def test_what_may_be_written_is_valid(seed: int) -> None:
    """T6, T9: never an instance that jsonschema refuses, nor a text that is not JSON."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = with_references(random.Random(seed))
    if (language := language_of(json.dumps(schema))) is None:
        return
    validator, rng = (
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date"])),
        np.random.default_rng(seed),
    )
    texts = [text for text in (walked(language, rng) for _ in range(40)) if text is not None]
    assert texts
    for text in texts:
        assert language.accepts(text.encode())
        assert validator.is_valid(json.loads(text)), (schema, text)


@pytest.mark.full
def test_ten_thousand_random_texts_are_valid() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.FormatChecker(["date"])
    num_texts = 0
    for seed in range(10_000, 10_600):
        schema = with_references(random.Random(seed))
        if (language := language_of(schema)) is None:
            continue
        validator, rng = jsonschema.Draft202012Validator(schema, format_checker=checker), np.random.default_rng(seed)
        for text in (text for text in (walked(language, rng) for _ in range(40)) if text is not None):
            assert validator.is_valid(json.loads(text)), (schema, text)
            num_texts += 1
    assert num_texts >= 10_000


def instance(rng: random.Random, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """A value of a schema, with properties in its order."""
    if "$ref" in schema:
        name = {"#/$defs/one": "one", "#Two": "two", "#/$defs/thr%65e": "three"}.get(schema["$ref"], "one")
        return instance(rng, root["$defs"][name], root)
    if "anyOf" in schema:
        return instance(rng, rng.choice(schema["anyOf"]), root)
    if "enum" in schema or "const" in schema:
        return rng.choice(schema.get("enum", [schema.get("const")]))
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    match rng.choice(types):
        case "string":
            plain = {"pattern": "aba", "format": "2024-02-29"}
            return next((text for key, text in plain.items() if key in schema), rng.choice(["", "é", "\n", '"', "a"]))
        case "integer":
            return rng.randint(schema.get("minimum", -100), schema.get("maximum", 10**6))
        case "number":
            return rng.choice([0.5, 1, 2.75, 3])
        case "array":
            parts, items = schema.get("prefixItems", []), schema.get("items", False)
            found = [instance(rng, part, root) for part in parts]
            if items is not False:
                found += [
                    instance(rng, items, root) for _ in range(rng.randint(schema.get("minItems", 0), schema.get("maxItems", 2)))
                ]
            return found
        case "object" if "properties" in schema:
            chosen = {
                name: part for name, part in schema["properties"].items() if name in schema["required"] or rng.random() < 0.5
            }
            return {name: instance(rng, part, root) for name, part in chosen.items()}
        case "object":
            names = rng.sample(WORDS, rng.randint(0, schema["maxProperties"]))
            return {name: instance(rng, schema["additionalProperties"], root) for name in names}
        case kind:
            return None if kind == "null" else rng.choice([True, False])


@pytest.mark.parametrize("seed", range(60))
def test_instances_may_be_written_as_python_writes_them(seed: int) -> None:
    """T6, T9: with and without a space after commas and colons; what jsonschema refuses may not be written."""
    jsonschema = pytest.importorskip("jsonschema")
    rng = random.Random(1_000 + seed)
    schema = with_references(rng)
    if (language := language_of(schema)) is None:
        return
    validator = jsonschema.Draft202012Validator(schema)
    for _ in range(40):
        value = instance(rng, schema, schema)
        for separators in ((",", ":"), (", ", ": ")):
            text = json.dumps(value, ensure_ascii=False, separators=separators)
            assert language.accepts(text.encode()) == validator.is_valid(value), (schema, text)
