"""Values of attributes: each is stored as it came, or named as a problem."""

from contextlib import suppress
from datetime import date, datetime
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


INEXACT = [
    (pa.decimal128(38, 2), 12345678901234567890.12),
    (pa.decimal128(38, 2), 1e30),  # which 1000000000000000000000000000000.01 is to a reader of JSON
    (pa.decimal128(38, 20), 0.12345678901234567),
    (pa.list_(pa.decimal128(38, 2)), [12345678901234567890.12]),
    (pa.struct([("d", pa.decimal128(38, 2))]), {"d": 12345678901234567890.12}),
    (pa.int64(), 9007199254740993.0),
    (pa.int64(), 1e18),
]


@pytest.mark.parametrize(("kind", "value"), INEXACT, ids=str)
def test_a_float_that_may_have_lost_digits_is_refused(kind: pa.DataType, value: Any):
    """D2: what the client wrote is no longer known."""
    column, problems = column_of([value, None], kind)
    assert (column.null_count, list(problems)) == (2, [0])
    assert "may have lost digits: write " in problems[0]


def test_decimals_are_exact():
    """D2: as text with all digits, as whole numbers, and as floats of up to 15 digits; 007 is a name (D5)."""
    kind = pa.decimal128(38, 2)
    values = ["12345678901234567890.12", "1e3", 10**35, 19.99, 123456789012.25, "-.5", "1E+2"]
    column, problems = column_of(values, kind)
    assert column.to_pylist() == [Decimal(str(value)) for value in values]
    assert problems == {}
    assert column_of([Decimal(2**53 + 1), Decimal("7.0")], pa.int64())[0].to_pylist() == [2**53 + 1, 7]
    assert list(column_of([Decimal("1.5"), Decimal("NaN"), Decimal("1E+400")], pa.int64())[1]) == [0, 1, 2]
    assert list(column_of(["007", "00501", " 7", "", ".", "null", "0x7", "1_0", "1.005"], kind)[1]) == [*range(9)]


S = pa.struct([("n", pa.int64()), ("at", pa.timestamp("us")), ("inner", pa.struct([("f", pa.float32())]))])
M = pa.map_(pa.string(), pa.int64())
MISFIT_PARTS = [
    (S, {"n": 1.5}, "field 'n': 1.5 is not a whole number"),
    (S, {"n": 1, "zzz": 2}, "there is no field 'zzz': an object of this column has n, at, inner"),
    (S, {"N": 7}, "there is no field 'N'"),
    (S, {"n": True}, "field 'n': True is not a whole number"),
    (S, {"at": 5}, "field 'at': 5 is not of type timestamp"),
    (S, {"at": "2026-01-01T00:00:00.1234567"}, "with at most 6 digits of a second"),
    (S, {"inner": {"f": 1e39}}, "field 'inner': field 'f': 1e+39 is too large or too small for a number of 32 bits"),
    (S, {"inner": {"g": 1}}, "field 'inner': there is no field 'g'"),
    (S, [["n", 1]], "is not of type struct"),
    (pa.list_(S), [{"n": 1}, {"n": 1.5}], "part 2: field 'n': 1.5 is not a whole number"),
    (M, {"k": 1.9}, "value of 'k': 1.9 is not a whole number"),
    (M, [["k", 1], ["k", 2]], "is not of type map"),
    (M, {"k": True}, "value of 'k': True"),
    (pa.map_(pa.int64(), pa.string()), [[1.5, "a"]], "key 1.5: 1.5 is not a whole number"),
    (pa.map_(pa.string(), pa.date32()), {"k": 3}, "value of 'k': 3 is not of type date32"),
    (pa.map_(pa.string(), pa.list_(pa.int8())), {"k": [1, 2.5]}, "value of 'k': part 2: 2.5"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "problem"), MISFIT_PARTS, ids=str)
def test_a_part_that_does_not_fit_is_named(kind: pa.DataType, value: Any, problem: str):
    """D2: parts of objects, maps and lists are never cut or dropped."""
    column, problems = column_of([None, value], kind)
    assert (column.null_count, list(problems)) == (2, [1])
    assert problem in problems[1]


def test_parts_of_objects_and_maps_are_read_as_columns_are():
    """D7, D12: times in text, exact numbers, missing fields, pairs as `GET` gives them."""
    column, problems = column_of([{"n": 1.0, "at": "2026-01-01T01:00:00+01:00"}, {}], S)
    assert column.to_pylist() == [
        {"n": 1, "at": datetime(2026, 1, 1), "inner": None},
        {"n": None, "at": None, "inner": None},
    ]
    assert problems == {}
    column, problems = column_of([{"k": "2026-11-22"}, [["k", None]]], pa.map_(pa.string(), pa.date32()))
    assert (column.to_pylist(), problems) == ([[("k", date(2026, 11, 22))], [("k", None)]], {})


@pytest.mark.parametrize("value", [1e-46, -1e-46, 5e-324])
def test_a_number_that_a_column_of_32_bits_would_make_zero_is_refused(value: float):
    """D2: alone, in lists and in objects; the smallest number that it keeps is not."""
    smallest = 1.401298464324817e-45
    for kind, wrap in ((pa.float32(), lambda x: x), (pa.list_(pa.float32()), lambda x: [x])):
        column, problems = column_of([wrap(value), wrap(0.0), wrap(smallest)], kind)
        assert (column.to_pylist(), list(problems)) == ([None, wrap(0.0), wrap(smallest)], [0])


@pytest.mark.parametrize("text", ["2026-W01-1", "2026W011", "20260101", "2026-001", "2026-1-1", "null", "10"])
def test_only_years_months_and_days_are_dates(text: str):
    """D12: a week of ISO 8601 became a day of another year."""
    for kind in (pa.date32(), pa.date64(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.time64("us")):
        assert list(column_of([text], kind)[1]) == [0]
        assert list(column_of([f"{text}T10:00:00"], kind)[1]) == [0]


@pytest.mark.parametrize("number", ["1e-400", "-0.1e-400", "0." + "0" * 330 + "1"])
def test_a_number_of_a_body_that_would_become_zero_is_refused(number: str):
    """D2: as one that would become infinite is."""
    line = f'{{"item_id": 1, "price": [{number}]}}'.encode()
    assert "is too small for a 64-bit number" in Lines.of_json_lines(line).problems[1]
    with pytest.raises(DataError, match="is too small for a 64-bit number"):
        Lines.of_json(line)
    exact = Lines.of_json(b'{"item_id": 1, "price": [0e-400, 1e-300, 0.0], "title": "1e-400"}')
    assert exact.items[0].attributes == {"price": [0.0, 1e-300, 0.0], "title": "1e-400"}
