"""Values of attributes: each is stored as it came, or named as a problem."""

from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from leafbeam.errors import DataError
from leafbeam.ingest import Lines
from leafbeam.ingest.attributes import column_of
from leafbeam.tables.as_json import rows_of


@pytest.mark.parametrize("text", ["9" * 39, "9" * 41, "1" + "0" * 400, "1e39", "1" + "0" * 40 + ".5"])
def test_a_number_beyond_its_column_is_refused_and_not_made_another_one(text: str):
    for kind in (pa.decimal128(38, 2), pa.decimal128(18, 3), pa.decimal128(4, 1)):
        column, problems = column_of([text, "-1.5", "12"], kind)
        assert column.to_pylist() == [None, Decimal("-1.5"), Decimal(12)]
        assert list(problems) == [0]
    column, problems = column_of([1e39, -1e39, 1.5], pa.float32())
    assert (column.to_pylist(), list(problems)) == ([None, None, 1.5], [0, 1])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.map_(pa.string(), pa.int64()), [None]),
        (pa.map_(pa.string(), pa.int64()), [[None, 1]]),
        (pa.map_(pa.string(), pa.int64()), [["a"]]),
        (pa.map_(pa.string(), pa.int64()), 3),
        (pa.list_(pa.map_(pa.string(), pa.int64())), [[None]]),
        (pa.struct([("a", pa.map_(pa.string(), pa.int64()))]), {"a": [None]}),
        (pa.timestamp("us", "UTC"), "0001-01-01T00:00:00+14:00"),
        (pa.timestamp("us"), "9999-12-31T23:59:59-14:00"),
    ],
    ids=str,
)
def test_a_value_that_pyarrow_cannot_hold_is_refused(kind: pa.DataType, value: Any):
    column, problems = column_of([value, None], kind)  # the process ended at some of these
    assert (column.to_pylist(), list(problems)) == ([None, None], [0])


def test_lists_as_deep_as_can_be_parsed_are_named_problems():
    for depth in range(500, 1000):  # at some depth the parser has just enough stack left, and what prints the value has not
        with suppress(DataError):
            assert Lines.of_json(b"[" * depth + b"]" * depth).problems


@pytest.mark.parametrize("value", ["é" * 32_769, ["x" * 40_000] * 2, {"x" * 65_537: 1}], ids=["text", "list", "map"])
def test_texts_of_an_attribute_are_bounded(value: Any):
    problem = Lines.of_rows([{"item_id": 1, "title": value}]).problems[1]
    assert problem.startswith("'title' has ")
    assert problem.endswith("bytes of text: expected at most 65,536")
    assert not Lines.of_rows([{"item_id": 1, "title": "x" * 65_536, "price": [1.5] * 100_000}]).problems


def test_objects_are_maps():
    column, problems = column_of([{"a": 1}, {"b": None}, {}], pa.map_(pa.string(), pa.int64()))
    assert (column.to_pylist(), problems) == ([[("a", 1)], [("b", None)], []], {})


def test_times_beyond_those_of_python_are_named_as_such():
    table = pa.table({"at": pa.array([2**62, 0], pa.timestamp("us", "UTC")), "price": [1.5, 2.5]})
    assert rows_of(table, exact=False) == [
        {"at": "a time beyond the years 1 to 9999", "price": 1.5},
        {"at": "1970-01-01T00:00:00Z", "price": 2.5},
    ]


EXACT = [
    (pa.timestamp("ns"), "2026-11-22T10:00:00.123456789", 1_795_341_600_123_456_789),
    (pa.timestamp("ns"), "2026-11-22 10:00:00.1234567", 1_795_341_600_123_456_700),
    (pa.timestamp("ns"), "2026-11-22T11:00:00,000000001+01:00", 1_795_341_600_000_000_001),
    (pa.timestamp("ns", "UTC"), "2026-11-22T10:00:00.000000001Z", 1_795_341_600_000_000_001),
    (pa.timestamp("ns"), "1969-12-31T23:59:59.999999999", -1),
    (pa.timestamp("us"), "2026-11-22T10:00:00.123456000", 1_795_341_600_123_456),
    (pa.timestamp("us"), "0001-01-01", -62_135_596_800_000_000),
    (pa.timestamp("ms"), "2026-11-22T10:00:00.120", 1_795_341_600_120),
    (pa.timestamp("s"), "2026-11-22T10:00:00", 1_795_341_600),
    (pa.time64("ns"), "10:00:00.123456789", 36_000_123_456_789),
    (pa.time64("us"), "10:00:00.123456", 36_000_123_456),
    (pa.time64("us"), "10:00", 36_000_000_000),
    (pa.time32("ms"), "23:59:59.999", 86_399_999),
]
CHANGED = [
    (pa.timestamp("us"), "2026-11-22T10:00:00.123456789"),
    (pa.timestamp("us", "UTC"), "2026-11-22T10:00:00.1234561Z"),
    (pa.timestamp("ns"), "2026-11-22T10:00:00.1234567891"),
    (pa.timestamp("ns"), "2300-01-01T00:00:00"),  # beyond 64 bits of nanoseconds
    (pa.timestamp("ms"), "2026-11-22T10:00:00.0001"),
    (pa.timestamp("s"), "2026-11-22T10:00:00.5"),
    (pa.time64("us"), "10:00:00.123456789"),
    (pa.time64("ns"), "10:00:00.0000000001"),
    (pa.time64("ns"), "10:00:00+01:00"),
    (pa.time32("s"), "10:00:00.5"),
    (pa.date32(), "2026-11-22T10:00:00"),
    (pa.list_(pa.int64()), [1.5]),
    (pa.list_(pa.float64()), [True]),
    (pa.list_(pa.float32()), [1e39]),
    (pa.list_(pa.list_(pa.int8())), [[1, 2.5]]),
    (pa.list_(pa.timestamp("us")), ["2026-11-22T10:00:00.123456789"]),
    (pa.list_(pa.string()), [3]),
    (pa.list_(pa.int64()), {"a": 1}),
]


@pytest.mark.parametrize(("kind", "text", "number"), EXACT, ids=str)
def test_times_are_exact_in_the_unit_of_their_column(kind: pa.DataType, text: str, number: int):
    """D7: to the nanosecond where the column has those, alone and in lists."""
    column, problems = column_of([text, None], kind)
    assert (column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist(), problems) == ([number, None], {})
    column, problems = column_of([[text, None]], pa.list_(kind))
    assert (column.flatten().is_null().to_pylist(), problems) == ([False, True], {})


@pytest.mark.parametrize(("kind", "value"), CHANGED, ids=str)
def test_a_value_that_a_column_would_change_is_refused(kind: pa.DataType, value: Any):
    """D7, D2: never cut, rounded or made infinite."""
    column, problems = column_of([None, value], kind)
    assert (column.null_count, list(problems)) == (2, [1])
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        assert "as text in ISO 8601, with at most " in problems[1]


def test_times_of_python_are_exact_too():
    """D7: `Lines.of_rows` takes values of Python."""
    moment = datetime(2026, 11, 22, 10, 0, 0, 5)
    assert column_of([moment], pa.timestamp("us"))[0].to_pylist() == [moment]
    assert list(column_of([moment], pa.timestamp("ms"))[1]) == [0]
    assert column_of([moment.time()], pa.time64("us"))[0].to_pylist() == [moment.time()]
    assert list(column_of([moment], pa.date32())[1]) == [0]
    assert column_of([moment.date()], pa.date32())[0].to_pylist() == [moment.date()]
