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
    ],
)
def test_a_cell_for_a_column_of_a_known_type(text: str, kind: str, value: object) -> None:
    """D5: what does not fit stays text, which the writer refuses by line."""
    assert parse_cell(text, kind) == value
    assert type(parse_cell(text, kind)) is type(value)
