"""Debezium's envelope: a row before and after a change, as JSON, with or without the schema of its columns.

See "Change event values" in Debezium's documentation of each connector.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, DecimalException
from typing import Any

import msgspec

from leafbeam.errors import DataError, short_repr
from leafbeam.feeds.batch import TRUNCATED, Operation, SourceColumns
from leafbeam.json_reader import Json, check_keys

_UNAVAILABLE = "__debezium_unavailable_value"  # a large column of PostgreSQL that the change left as it was
_UNAVAILABLE_BYTES = base64.b64encode(_UNAVAILABLE.encode()).decode()
_MAX_DIGITS_BYTES, _MAX_SCALE = 128, 512
_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, DecimalException, binascii.Error)


def read_envelope(value: bytes, key: bytes | None, columns: SourceColumns) -> tuple[Operation, dict[str, object]]:
    """Return the change in a message's value.

    A row that was created, read or updated is put; where the database left out a large column that did not change, the others
    are patched. Times, dates and decimals are converted if the envelope has its schema. The key of the message names a deleted
    row whose contents the database did not log. Raises DataError.
    """
    schema, payload = _payload_of(value, "value")
    operation = payload.get("op")
    if operation == "d":
        before = payload.get("before") or (_payload_of(key, "key")[1] if key is not None else {})
        if not isinstance(before, Mapping):
            raise DataError(f"its row before is {short_repr(before)}: expected an object")
        return "delete", {"item_id": columns.id_of(before)}
    if operation == "t":
        raise DataError(TRUNCATED)
    if operation not in ("c", "r", "u"):
        raise DataError(f"its op is {short_repr(operation)}: expected c, r, u or d, as in Debezium's envelope")
    after = payload.get("after")
    if not isinstance(after, Mapping):
        raise DataError(f"its row after is {short_repr(after)}: expected an object")
    kinds = _kinds_of(schema)
    row = {
        str(name): _converted(str(name), content, kinds.get(str(name)))
        for name, content in after.items()
        if content not in (_UNAVAILABLE, _UNAVAILABLE_BYTES)
    }
    return columns.change(row, is_whole=len(row) == len(after))


def _payload_of(content: bytes, what: str) -> tuple[Json | None, Json]:
    """Return (schema or None, payload) of a message's part, which may be the payload alone."""
    try:
        payload = msgspec.json.decode(content)
        check_keys(content, 0)
    except (ValueError, RecursionError) as error:  # a DecodeError is a ValueError
        raise DataError(f"its {what} cannot be read as JSON: {str(error)[:160]}") from None
    if isinstance(payload, Mapping) and set(payload) == {"schema", "payload"}:
        schema, payload = payload["schema"], payload["payload"]
    else:
        schema = None
    if not isinstance(payload, Mapping):
        raise DataError(f"its {what} is {short_repr(payload)}: expected an object with op, before and after")
    return schema, payload


def _kinds_of(schema: Json | None) -> dict[str, tuple[str, Json]]:
    """Return (type's name, its parameters) of the columns of the row after that have a type with a name."""
    if schema is None:
        return {}
    try:
        rows = [part["fields"] for part in schema["fields"] if part["field"] == "after"]
        fields = rows[0] if rows else ()
        return {
            field["field"]: (field["name"], field.get("parameters") or {}) for field in fields if field.get("name") is not None
        }
    except _ERRORS as error:
        raise DataError(f"its schema cannot be read ({type(error).__name__}: {str(error)[:100]})") from None


def _converted(name: str, content: object, kind: tuple[str, Json] | None) -> object:
    """Return a value as the server reads it: times as ISO 8601, exact numbers as text."""
    converter = None if kind is None or content is None else _CONVERTERS.get(kind[0])
    if converter is None or kind is None:
        return content
    try:
        return converter(content, kind[1])
    except _ERRORS as error:
        raise DataError(f"column {name!r} is {short_repr(content)}, which is not a {kind[0]} ({str(error)[:80]})") from None


def _decimal(unscaled: str, scale: int) -> str:
    data = base64.b64decode(unscaled, validate=True)
    if len(data) > _MAX_DIGITS_BYTES or not -_MAX_SCALE <= scale <= _MAX_SCALE:
        raise ValueError("it has too many digits")
    digits = str(abs(number := int.from_bytes(data, "big", signed=True)))
    return f"{Decimal((int(number < 0), tuple(map(int, digits)), -scale)):f}"


def _moment(units_per_s: int) -> Callable[[object, Json], str]:
    def convert(value: object, parameters: Json) -> str:
        seconds, rest = divmod(_whole(value), units_per_s)
        return (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat() + _fraction(rest * 10**9 // units_per_s)

    return convert


def _time_of_day(units_per_s: int) -> Callable[[object, Json], str]:
    def convert(value: object, parameters: Json) -> str:
        seconds, rest = divmod(_whole(value), units_per_s)
        minutes, second = divmod(seconds, 60)
        return time(minutes // 60, minutes % 60, second).isoformat() + _fraction(rest * 10**9 // units_per_s)

    return convert


def _fraction(nanoseconds: int) -> str:
    """Return the part of a second as ISO 8601 has it: six digits, or nine if it is finer."""
    digits = f".{nanoseconds:09}" if nanoseconds else ""
    return digits if nanoseconds % 1000 else digits[:-3]


def _day(value: object, parameters: Json) -> str:
    return (date(1970, 1, 1) + timedelta(days=_whole(value))).isoformat()


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError("expected a whole number")
    return value


_CONVERTERS: Mapping[str, Callable[[Any, Json], object]] = {
    "io.debezium.time.Date": _day,
    "io.debezium.time.Timestamp": _moment(1_000),
    "io.debezium.time.MicroTimestamp": _moment(1_000_000),
    "io.debezium.time.NanoTimestamp": _moment(1_000_000_000),
    "io.debezium.time.Time": _time_of_day(1_000),
    "io.debezium.time.MicroTime": _time_of_day(1_000_000),
    "io.debezium.time.NanoTime": _time_of_day(1_000_000_000),
    "io.debezium.data.VariableScaleDecimal": lambda value, _: _decimal(value["value"], _whole(value["scale"])),
    "org.apache.kafka.connect.data.Date": _day,
    "org.apache.kafka.connect.data.Time": _time_of_day(1_000),
    "org.apache.kafka.connect.data.Timestamp": _moment(1_000),
    "org.apache.kafka.connect.data.Decimal": lambda value, parameters: _decimal(value, int(parameters["scale"])),
}
