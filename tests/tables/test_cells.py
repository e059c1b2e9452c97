"""Types of cells: the page that users read says what the code does."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from leafbeam.tables.cells import list_of, parse_cell, typed
from leafbeam.tables.table import type_name

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "your-data.md"


def documented_types() -> list[tuple[str, str]]:
    """(type, a way to write it) of each example in the table of types."""
    section = PAGE.read_text(encoding="utf-8").partition("## Types of attributes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([a-z/ ]+) \| (.*) \|$", section, re.MULTILINE)
    return [(name, example) for name, examples in rows if name != "type" for example in re.findall("`([^`]+)`", examples)]


def test_the_page_has_every_type() -> None:
    """L4: none is missing, and none is made up."""
    assert {name for name, _ in documented_types()} == {
        "true/false",
        "whole number",
        "number",
        "date",
        "time",
        "time of a day",
        "list",
        "text",
    }


@pytest.mark.parametrize(("name", "example"), documented_types())
def test_each_example_of_the_page_has_the_type_it_is_listed_under(name: str, example: str) -> None:
    """L4: types as read."""
    kind = type_name(typed(pa.chunked_array([pa.array([example])])).type)
    assert kind.removesuffix(" of text").removesuffix(" of whole number") == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", [1, 2]),
        ("['a', \"it's\", 'b\\'c']", ["a", "it's", "b'c"]),
        ("['a', 'it''s']", None),
        ("['a' 'b']", None),
        ("[0x12, 1_000]", None),
        ("[1j]", None),
        ("[-1, 2.5, 1e-05,]", [-1, 2.5, 1e-05]),
        ("['a',\n 'b']", ["a", "b"]),
        ("[b'a']", None),
        ("[f'a']", None),
        ('["a"]', ["a"]),
        ("[None]", [None]),
        ("[NaN]", None),
        ("[1e400, 1]", None),
        ("[1e-400, 1.5]", None),
        ("[1e400, 1,]", None),
        ("['a', 1e-400]", None),
        ("[12345678901234567.5]", None),
        ("[1234567.12345678901234,]", None),
        ("[9007199254740993, None]", [9007199254740993, None]),
        ("[0.10000000000000001, 1E5]", [0.1, 1e5]),
        ('[{"n": 1, "n": 2}]', None),
        ("(1, 2)", None),
        ("[__import__('os')]", None),
        ("[" * 100_000, None),
        ("{}", None),
    ],
)
def test_lists_are_read_as_json_or_as_python_prints_them(text: str, expected: list[object] | None) -> None:
    """L3: nothing is run."""
    assert list_of(text) == expected


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("007", "int64", "007"),
        ("7", "int64", 7),
        ("9223372036854775808", "int64", 2**63),
        ("1e2", "int64", 100.0),
        ("12345678901234567890", "double", "12345678901234567890"),
        ("nan", "double", "nan"),
        ("TRUE", "bool", True),
        ("yes", "bool", "yes"),
        ("[1]", "list<element: int64>", [1]),
        ("[1]", "string", "[1]"),
        (" 5 ", "double", 5.0),
        (" 5 ", "string", " 5 "),
        ("2026-11-22", "date32[day]", "2026-11-22"),
        ("[3, 1]", "", [3, 1]),
        ("12345678901234567890.12", "decimal128(38, 2)", "12345678901234567890.12"),
        (" 1.5 ", "decimal128(38, 2)", "1.5"),
        ("null", "decimal128(38, 2)", "null"),
        ("null", "date32[day]", "null"),
        ("null", "list<item: string>", "null"),
        ("null", "struct<n: int64>", "null"),
        ("null", "map<string, int64>", "null"),
        ("null", "", "null"),
        ("true", "", "true"),
        ("true", "timestamp[us]", "true"),
        ("20260101", "date32[day]", "20260101"),
        ("null", "dictionary<values=string, indices=int32, ordered=0>", "null"),
        ("7", "dictionary<values=string, indices=int32, ordered=0>", "7"),
        ('{"n": 1, "n": 2}', "struct<n: int64>", '{"n": 1, "n": 2}'),
        ('{"n": 1e400}', "struct<n: double>", '{"n": 1e400}'),
        ('{"n": 12345678901234567.5}', "struct<n: double>", '{"n": 12345678901234567.5}'),
        ('{"n": 1.5}', "struct<n: double>", {"n": 1.5}),
        ("999999999999999.99", "double", "999999999999999.99"),
    ],
)
def test_a_cell_for_a_column_of_a_known_type(text: str, kind: str, value: object) -> None:
    """D2, D4, D5, D10: what does not fit stays text, which the writer refuses by line."""
    assert parse_cell(text, kind) == value
    assert type(parse_cell(text, kind)) is type(value)


@pytest.mark.parametrize(
    ("text", "is_number"),
    [
        ("999999999999999.99", False),
        ("1234567.12345678901234", False),
        ("12345678901234.567", False),
        ("4.3333333333333333", False),
        ("1.23456e-320", False),
        ("1e-400", False),
        ("1e400", False),
        ("123456789012345.5", True),
        ("0.30000000000000004", True),
        ("0.10000000000000001", True),  # C's %.17g
        ("1.000000000000000056e-01", True),  # NumPy's savetxt
        ("5.684341886080802e-14", True),  # the shortest that reads back; 16 digits of the float64 end in 1
        ("1.5000000000000000000", True),
        ("1.7976931348623157e308", True),
        ("5e-324", True),
        ("-0.00", True),
    ],
)
def test_a_number_whose_digits_would_change_is_text(text: str, is_number: bool) -> None:
    """D2: the same rule in columns, in single cells and in lists; other numbers in the column are no way around it."""
    column = typed(pa.chunked_array([["0.5", None, text]]))
    assert (column.type == pa.float64()) == is_number
    assert column.to_pylist() == ([0.5, None, float(text)] if is_number else ["0.5", None, text])
    assert parse_cell(text, "double") == (float(text) if is_number else text)
    assert list_of(f"[{text}]") == ([float(text)] if is_number else None)
    assert (typed(pa.chunked_array([[f"[0.5, {text}]"]])).type == pa.list_(pa.float64())) == is_number
