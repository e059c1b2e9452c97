"""The benchmark of JSON Schemas: what it counts, and that an engine answers in a process of its own."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.micro import schemas

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
    "required": ["a"],
}
TESTS = [
    {"valid": True, "data": {"a": 1, "b": None}},
    {"valid": True, "data": {"b": None, "a": 1}},
    {"valid": True, "data": {"a": 1, "c": 2}},
    {"valid": False, "data": {"a": "x"}},
]


def write_data(directory: Path) -> None:
    contents = [{"schema": SCHEMA, "tests": TESTS}, {"schema": {"$dynamicRef": "#x"}, "tests": TESTS[:1]}]
    for number, content in enumerate(contents):
        (directory / f"{number}.json").write_text(json.dumps(content))


def test_keys_are_put_into_the_order_of_the_schema() -> None:
    nested = {"type": "array", "items": SCHEMA}
    assert list(schemas.in_order([{"b": None, "a": 1}], nested)[0]) == ["a", "b"]
    assert schemas.in_order([{"a": 1, "b": None}], nested) is None
    assert schemas.in_order({"z": 1, "a": 1}, SCHEMA) is None


def test_a_file_of_the_suite_of_validators_holds_several_schemas(tmp_path: Path) -> None:
    groups = [{"description": "x", "schema": SCHEMA, "tests": TESTS}, {"description": "y", "schema": True, "tests": TESTS[:1]}]
    (tmp_path / "type.json").write_text(json.dumps(groups))
    suite, cases = schemas.cases_of(tmp_path, None, 0)
    assert suite == "JSON-Schema-Test-Suite"
    assert {case.name: (case.schema, len(case.tests)) for case in cases} == {"type 0": (SCHEMA, 4), "type 1": (True, 1)}


@pytest.mark.slow
def test_an_engine_answers_in_a_process_of_its_own_and_is_counted(tmp_path: Path) -> None:
    write_data(tmp_path)
    suite, cases = schemas.cases_of(tmp_path, None, 0)
    assert suite == "MaskBench"
    vocabulary = tmp_path / "vocabulary"
    tokens = [None, None, None, *(base64.b64encode(bytes([byte])).decode() for byte in range(256))]
    vocabulary.write_text(json.dumps({"tokens": tokens, "end": 2}))
    answers = schemas.answers_of("leafbeam", Path(sys.executable), vocabulary, cases)
    row = schemas.summary(cases, answers, answers.compiled)
    assert (row["compiled"], row["compiled_share"], row["common"]) == (1, 0.5, 1)
    assert row["reasons"] == {"#: 'x' names no $anchor of this schema": 1}
    assert row["valid"] == {"accepted": 1, "order": 1, "unlisted": 1, "refused": 0}
    assert row["invalid"] == {"accepted": 0, "refused": 1}
    assert row["build_ms"]["p50"] > 0 < row["mask_us"]["p50"]
