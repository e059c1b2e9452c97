"""Rows of tables as JSON values."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from leafbeam.tables.as_json import rows_of


def test_times_and_exact_numbers_are_text_as_in_json():
    second = [1_700_000_000_000_000_000]
    table = pa.table(
        {
            "nanoseconds": pa.array(second, pa.timestamp("ns")),  # what pandas writes
            "zoned": pa.array(second, pa.timestamp("ns", "UTC")),
            "clock": pa.array([3_000_000_000], pa.time64("ns")),
            "day": [dt.date(2024, 5, 1)],
            "exact": [Decimal("1.50")],
            "half": pa.array([1.5], pa.float32()).cast(pa.float16()),
        }
    )
    assert rows_of(table) == [
        {
            "nanoseconds": "2023-11-14T22:13:20",
            "zoned": "2023-11-14T22:13:20Z",
            "clock": "00:00:03",
            "day": "2024-05-01",
            "exact": "1.50",
            "half": 1.5,
        }
    ]


def test_times_finer_than_microseconds_are_refused_where_rows_have_to_be_exact():
    table = pa.table({"seen": pa.array([1], pa.timestamp("ns"))})
    assert rows_of(table, exact=False) == [{"seen": "1970-01-01T00:00:00"}]
    with pytest.raises(pa.ArrowInvalid, match="would lose data"):
        rows_of(table)
