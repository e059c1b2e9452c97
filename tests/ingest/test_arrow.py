"""Arrow bodies: rows as in JSON, and nothing that makes a short body large."""

import datetime as dt
import io
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from leafbeam.errors import DataError
from leafbeam.ingest import Lines


def stream(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def test_rows_have_the_fields_that_are_not_null():
    table = pa.table(
        {
            "item_id": ["a", "b", "c"],
            "codes": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16())),
            "vector": pa.array([None, [0.5, 1.0], None], pa.list_(pa.float32(), 2)),
            "price": [1.5, None, 2.0],
            "seen": pa.array([dt.datetime(2024, 5, 1)] * 3, pa.timestamp("us")),
            "tags": [["x"], None, []],
        }
    )
    lines = Lines.of_arrow(stream(table))
    assert [(item.item_id, item.codes, item.vector) for item in lines.items] == [
        ("a", [1, 2], None),
        ("b", None, [0.5, 1.0]),
        ("c", [3, 4], None),
    ]
    assert lines.items[0].attributes == {"price": 1.5, "seen": "2024-05-01T00:00:00", "tags": ["x"]}
    assert lines.items[1].attributes == {"seen": "2024-05-01T00:00:00"}
    assert not lines.problems


def test_times_and_exact_numbers_are_text_as_in_json():
    second = [1_700_000_000_000_000_000]
    table = pa.table(
        {
            "item_id": [1],
            "nanoseconds": pa.array(second, pa.timestamp("ns")),  # what pandas writes
            "zoned": pa.array(second, pa.timestamp("ns", "UTC")),
            "clock": pa.array([3_000_000_000], pa.time64("ns")),
            "day": [dt.date(2024, 5, 1)],
            "exact": [Decimal("1.50")],
            "half": pa.array([1.5], pa.float32()).cast(pa.float16()),
        }
    )
    assert Lines.of_arrow(stream(table)).items[0].attributes == {
        "nanoseconds": "2023-11-14T22:13:20",
        "zoned": "2023-11-14T22:13:20Z",
        "clock": "00:00:03",
        "day": "2024-05-01",
        "exact": "1.50",
        "half": 1.5,
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no Arrow IPC stream"),
        (b"ARROW1\0\0", "no Arrow IPC stream"),
        (stream(pa.table({"item_id": ["a"] * 10}))[:-40], "no Arrow IPC stream"),
        (stream(pa.table({"item_id": ["a" * 10_000]}), compression="zstd"), "is compressed"),
        (stream(pa.table({"item_id": ["a" * 10_000]}), compression="lz4"), "is compressed"),
        (
            stream(pa.table({"item_id": pa.array(["a", "a"]).dictionary_encode()})),
            "'item_id' of the Arrow stream is dict",
        ),
        (stream(pa.table({"x": pa.array(["a"], pa.string_view())})), "is string_view"),
        (stream(pa.table({"x": pa.array([{"a": 1}])})), "is struct"),
        (stream(pa.table({"x": pa.array([[[1]]])})), "is list"),
        (stream(pa.table({"x": pa.array([[None]], pa.list_(pa.null()))})), "is list"),
        (stream(pa.table({"x": pa.array([b"1"])})), "is binary"),
        (stream(pa.table({"x": [[dt.datetime(2024, 5, 1)]]})), "is list"),
        (stream(pa.table({"x": [[Decimal("1.5")]]})), "is list"),
        (stream(pa.table({"x": pa.array([1], pa.timestamp("ns"))})), "would lose data"),
        (stream(pa.table({"x": pa.array([1], pa.timestamp("us", "Nowhere/Land"))})), "no Arrow IPC stream"),
        (stream(pa.table({"x": pa.RunEndEncodedArray.from_arrays([1 << 30], pa.array(["long"]))}).slice(0, 1)), "run_end"),
        (stream(pa.table({"item_id": pa.array([], pa.string())})), "no line"),
        (stream(pa.table({"x": pa.array([[]], pa.list_(pa.int8(), 0))})), "'x' of the Arrow stream has lists of no element"),
        (stream(pa.table({f"x{n}": [1] for n in range(1001)})), "1,001 columns"),
    ],
)
def test_what_is_no_plain_table_is_refused(body: bytes, message: str):
    with pytest.raises(DataError, match=message):
        Lines.of_arrow(body)


def test_rows_beyond_the_bound_are_not_read():
    table = pa.table({"item_id": range(10_001)})
    with pytest.raises(DataError, match="up to 10,000 lines"):
        Lines.of_arrow(stream(table))
    batch = pa.RecordBatch.from_arrays([pa.nulls(1 << 28)], names=["item_id"])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    assert len(sink.getvalue()) < 1000
    with pytest.raises(DataError, match="up to 10,000 lines"):
        Lines.of_arrow(sink.getvalue())


def test_values_beyond_the_bound_are_not_read():
    wide = pa.table({f"x{n}": pa.array([True] * 10_000) for n in range(101)})
    deep = pa.table({"x": pa.array([[True] * 1_000_000])})
    for table in (wide, deep):
        with pytest.raises(DataError, match="up to 1,000,000 values"):
            Lines.of_arrow(stream(table.combine_chunks()))
    lines = Lines.of_arrow(stream(pa.table({"item_id": range(1000), **{f"x{n}": pa.array([True] * 1000) for n in range(99)}})))
    assert len(lines.items) == 1000
    assert all(len(item.attributes) == 99 for item in lines.items)


def test_columns_of_nulls_are_left_out():
    nulls = {f"x{n}": pa.nulls(1001) for n in range(999)}  # a million values of no byte
    lines = Lines.of_arrow(stream(pa.table({"item_id": range(1001), **nulls})))
    assert [item.attributes for item in lines.items] == [{}] * 1001
    assert Lines.of_arrow(stream(pa.table(nulls).slice(0, 3))).problems == dict.fromkeys([1, 2, 3], "it has no item_id")


def test_columns_that_share_bytes_are_refused():
    size, columns = 100_000, range(20)
    body = stream(pa.table({"item_id": ["a" * size], **{f"x{n}": ["b"] for n in columns}}))
    for n in columns:  # the offsets and the bytes of each become those of the first column
        begin = size + 8 + 16 * n
        for own, first in (((begin, 8), (0, 8)), ((begin + 8, 1), (8, size))):
            assert body.count(struct.pack("<qq", *own)) == 1
            body = body.replace(struct.pack("<qq", *own), struct.pack("<qq", *first))
    with pytest.raises(DataError, match="share bytes"):
        Lines.of_arrow(body)
