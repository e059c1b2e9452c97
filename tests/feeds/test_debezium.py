"""Debezium's envelope: what it says becomes a change, and what is none is named."""

import base64
import json
from typing import Any

import pytest

from leafbeam.errors import DataError
from leafbeam.feeds import SourceColumns
from leafbeam.feeds.debezium import read_envelope
from tests.feeds.broker import created, deleted, updated

SKU = SourceColumns(item_id="sku")


def read(content: Any, key: Any = None, columns: SourceColumns = SKU) -> tuple[str, dict[str, Any]]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_envelope(data, None if key is None else json.dumps(key).encode(), columns)


def with_schema(payload: Any, kinds: dict[str, tuple[str, dict[str, str]]]) -> dict[str, Any]:
    fields = [{"field": name, "name": kind, "parameters": more, "type": "x"} for name, (kind, more) in kinds.items()]
    schema = {"type": "struct", "fields": [{"field": "before", "fields": []}, {"field": "after", "fields": fields}]}
    return {"schema": schema, "payload": payload}


def test_rows_are_put_and_deleted() -> None:
    row = {"sku": "a", "price": 3.5, "title": None, "codes": [1, 2]}
    put = ("put", {"item_id": "a", "price": 3.5, "title": None, "codes": [1, 2]})
    assert read(created(row)) == put
    assert read(updated(row)) == put
    assert read(created(row, op="r")) == put
    assert read({"schema": None, "payload": created(row)}) == put
    assert read(created(row), columns=SourceColumns(item_id="sku", names=("price",))) == ("put", {"item_id": "a", "price": 3.5})
    assert read(deleted({"sku": "a", "price": None})) == ("delete", {"item_id": "a"})
    assert read(deleted(None), key={"sku": 7}) == ("delete", {"item_id": 7})
    assert read(deleted(None), key={"schema": {}, "payload": {"sku": "b"}}) == ("delete", {"item_id": "b"})


def test_a_large_column_that_did_not_change_is_left_as_it_is() -> None:
    row = {"sku": "a", "price": 4, "text": "__debezium_unavailable_value"}
    assert read(updated(row)) == ("patch", {"item_id": "a", "price": 4})
    row["text"] = base64.b64encode(b"__debezium_unavailable_value").decode()
    assert read(updated(row)) == ("patch", {"item_id": "a", "price": 4})
    narrow = SourceColumns(item_id="sku", names=("price",))
    assert read(updated(row), columns=narrow) == ("put", {"item_id": "a", "price": 4})


@pytest.mark.parametrize(
    ("kind", "more", "value", "expected"),
    [
        ("io.debezium.time.Date", {}, 20_000, "2024-10-04"),
        ("io.debezium.time.Timestamp", {}, 1_700_000_000_123, "2023-11-14T22:13:20.123000"),
        ("io.debezium.time.MicroTimestamp", {}, -1, "1969-12-31T23:59:59.999999"),
        ("io.debezium.time.NanoTimestamp", {}, 1_700_000_000_000_000_999, "2023-11-14T22:13:20.000000999"),
        ("io.debezium.time.Time", {}, 3_723_004, "01:02:03.004000"),
        ("io.debezium.time.MicroTime", {}, 0, "00:00:00"),
        ("io.debezium.time.ZonedTimestamp", {}, "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("org.apache.kafka.connect.data.Decimal", {"scale": "2"}, base64.b64encode(b"\x30\x39").decode(), "123.45"),
        ("org.apache.kafka.connect.data.Decimal", {"scale": "0"}, base64.b64encode(b"\xff").decode(), "-1"),
        ("io.debezium.data.VariableScaleDecimal", {}, {"scale": 3, "value": base64.b64encode(b"\x01").decode()}, "0.001"),
        ("io.debezium.time.Date", {}, None, None),
        ("io.debezium.data.Json", {}, "{}", "{}"),
    ],
)
def test_types_of_databases_are_converted_by_the_schema(kind: str, more: dict[str, str], value: Any, expected: Any) -> None:
    content = with_schema(created({"sku": "a", "x": value}), {"x": (kind, more)})
    assert read(content) == ("put", {"item_id": "a", "x": expected})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its value cannot be read as JSON"),
        (b"\xff", "its value cannot be read as JSON"),
        (b"[" * 100_000, "its value cannot be read as JSON"),
        ([], "expected an object with op"),
        ({}, "its op is None"),
        (created({"sku": "a"}, op="t"), "the table was emptied"),
        (created({"sku": "a"}, op="x"), "its op is 'x'"),
        (created({"sku": "a"}, op=["c"]), "its op is ['c']"),
        (created({"sku": "a"}) | {"after": None}, "its row after is None"),
        (created({"price": 3}), "it has no 'sku'; its columns: 'price'"),
        (created({"sku": 1.5}), "its id is 1.5"),
        (created({"sku": True}), "its id is True"),
        (created({"sku": "a", "item_id": "b"}), "a column 'item_id' too"),
        (deleted(None), "it has no 'sku'; its columns: none"),
        (deleted({"price": 3}), "it has no 'sku'"),
        (created({}, op="d") | {"before": [1]}, "its row before is [1]"),
        ({"schema": 3, "payload": created({"sku": "a"})}, "its schema cannot be read"),
        ({"schema": {"fields": [{"field": "after"}]}, "payload": created({"sku": "a"})}, "its schema cannot be read"),
        (with_schema(created({"sku": "a", "x": 1 << 70}), {"x": ("io.debezium.time.Date", {})}), "column 'x' is"),
        (with_schema(created({"sku": "a", "x": "b"}), {"x": ("io.debezium.time.Timestamp", {})}), "column 'x' is 'b'"),
        (with_schema(created({"sku": "a", "x": 90_000_000}), {"x": ("io.debezium.time.Time", {})}), "column 'x' is"),
        (with_schema(created({"sku": "a", "x": "!"}), {"x": ("org.apache.kafka.connect.data.Decimal", {})}), "column 'x' is"),
        (
            with_schema(
                created({"sku": "a", "x": "A" * 400}), {"x": ("org.apache.kafka.connect.data.Decimal", {"scale": "1"})}
            ),
            "too many digits",
        ),
    ],
    ids=range(23),
)
def test_what_is_no_envelope_is_named(content: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(content)
    assert message in str(caught.value)


def test_a_column_that_was_asked_for_must_be_there() -> None:
    with pytest.raises(DataError, match="it has no column 'price'; its columns: 'sku', 'title'"):
        read(created({"sku": "a", "title": "x"}), columns=SourceColumns(item_id="sku", names=("price",)))
