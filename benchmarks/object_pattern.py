"""The texts of a JSON Schema's objects as one pattern, for peers that take patterns alone."""

import json
from collections.abc import Mapping
from typing import Any

from leafbeam.automata.json_text import CHARACTER, any_of, integers


def object_pattern(schema: Mapping[str, Any]) -> str:
    """Return the pattern of an object whose properties are all required: strings, whole numbers, booleans and lists of texts.

    It has the language of `Automaton.from_json_schema`, which a test compares.
    """
    fields = [f'"{name}": ?{_value(value)}' for name, value in schema["properties"].items()]
    assert schema["required"] == list(schema["properties"])
    return rf"\{{{', ?'.join(fields)}\}}"


def _value(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return any_of([json.dumps(value) for value in schema["enum"]])
    if schema["type"] == "string":
        return f'"{CHARACTER}{{{schema.get("minLength", 0)},{schema.get("maxLength", "")}}}"'
    if schema["type"] == "integer":
        return f"(?:{integers(schema.get('minimum'), schema.get('maximum'))})"
    assert schema["type"] == "boolean"
    return "(?:true|false)"
