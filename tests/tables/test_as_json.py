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


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"),
        (pa.timestamp("ns"), -1, "1969-12-31T23:59:59.999999999"),
        (pa.timestamp("ns", "UTC"), 1_769_000_001_123_456_789, "2026-01-21T12:53:21.123456789Z"),
        (pa.timestamp("ns", "Europe/Berlin"), 1_769_000_001_123_456_789, "2026-01-21T12:53:21.123456789Z"),
        (pa.time64("ns"), 36_000_123_456_789, "10:00:00.123456789"),
    ],
)
def test_times_finer_than_microseconds_are_exact(kind: pa.DataType, value: int, text: str):
    """D7: pandas writes nanoseconds into Parquet."""
    table = pa.table({"seen": pa.array([value, None], kind)})
    for rows in (rows_of(table), rows_of(table.to_batches()[0]), rows_of(table, exact=False)):
        assert rows == [{"seen": text}, {"seen": None}]
