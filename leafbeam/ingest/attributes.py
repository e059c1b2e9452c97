"""Attributes of items as columns of the catalog's table: values of the types that the table has, or their mistakes."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, cast

import pyarrow as pa

from leafbeam.errors import short_repr
from leafbeam.tables.table import type_name

_FINER = re.compile(r"[.,]\d{6}(\d+)")
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)
_NAMES = {"string": "text", "bool": "true or false", "double": "a number", "float": "a number", "int64": "a whole number"}


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, names: Sequence[str]) -> tuple[pa.Table, dict[int, str]]:
    """Return the columns `names` of some rows, with null where a row has no value, and the problems of rows by index."""
    columns: dict[str, pa.Array] = {}
    problems: dict[int, str] = {}
    for name in names:
        columns[name], found = column_of([row.get(name) for row in rows], schema.field(name).type)
        for index, problem in found.items():
            problems.setdefault(index, f"{name}: {problem}")
    return pa.table(columns), problems


def column_of(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return a column of a type, with null where a value does not fit, and the problems of values by index.

    Numbers are not accepted as text, nor booleans as numbers. In a column of times or exact numbers, text is read as these; a
    time without a zone is UTC.
    """
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    fitting: list[Any] = []
    problems: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            fitting.append(None if value is None else _fitting(value, kind))
        except _ERRORS:
            fitting.append(None)
            problems[index] = _problem(value, kind)
    try:
        return pa.array(fitting, kind), problems
    except _ERRORS:
        for index, value in enumerate(fitting):
            try:
                pa.array([value], kind)
            except _ERRORS:
                problems[index], fitting[index] = _problem(values[index], kind), None
        return pa.array(fitting, kind), problems


def _problem(value: Any, kind: pa.DataType) -> str:
    expected = _NAMES.get(str(kind), f"of type {kind}")
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        expected += f": expected {type_name(kind)} as text in ISO 8601, with at most {_DIGITS[kind.unit]} digits of a second"
    return f"{short_repr(value)} is not {expected}"


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value that pyarrow converts without loss. Raises one of `_ERRORS` if it does not fit."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        if not isinstance(value, list):
            raise TypeError
        parts = cast("list[Any]", value)
        return [None if part is None else _fitting(part, kind.value_type) for part in parts]
    if isinstance(value, bool) != types.is_boolean(kind):
        raise TypeError
    if types.is_integer(kind) and isinstance(value, float):
        if not value.is_integer():
            raise ValueError
        return int(value)
    if isinstance(value, float) and not isfinite(value):
        raise ValueError
    if types.is_float32(kind) and isinstance(value, float) and not isfinite(pa.scalar(value, kind).as_py()):
        raise ValueError
    if types.is_decimal(kind) and isinstance(value, int | float | str):
        exact = pa.scalar(str(value)).cast(kind).as_py()
        if exact != Decimal(str(value)):  # of more than 38 digits pyarrow keeps others
            raise ValueError
        return exact
    if types.is_temporal(kind) and isinstance(value, str | date | time):
        return _moment(value if isinstance(value, str) else value.isoformat(), kind)
    if (types.is_temporal(kind) and isinstance(value, int | float)) or (
        types.is_nested(kind) and isinstance(value, str | bytes)
    ):
        raise TypeError
    _check_maps(value, kind)
    return value


def _moment(text: str, kind: pa.DataType) -> Any:
    """Return a date, or a time as a number in the column's unit, since 1970 or midnight. Raises ValueError if it is finer."""
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_time(kind):
        if time.fromisoformat(text).tzinfo is not None:  # the column would lose the zone
            raise ValueError
        text = f"1970-01-01 {text}"
    elif not pa.types.is_timestamp(kind):
        raise TypeError
    finer = _FINER.search(text)  # digits beyond microseconds, which Python drops
    moment = datetime.fromisoformat(text)
    moment = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    microseconds = (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
    nanoseconds = 1000 * microseconds + (int(finer[1][:3].ljust(3, "0")) if finer else 0)
    number, rest = divmod(nanoseconds, 10 ** (9 - _DIGITS[kind.unit]))
    if rest or (finer and finer[1][3:].strip("0")):
        raise ValueError
    return number


def _check_maps(value: Any, kind: pa.DataType) -> None:
    """Raise TypeError for a map with an entry or a key that is null, at which pyarrow ends the process, or another value."""
    types = pa.types
    if types.is_map(kind) and value is not None:
        for entry in value.items() if isinstance(value, Mapping) else value:
            if not isinstance(entry, list | tuple) or len(entry) != 2 or entry[0] is None:
                raise TypeError
            _check_maps(entry[1], kind.item_type)
    elif types.is_struct(kind) and isinstance(value, Mapping):
        for field in kind:
            _check_maps(value.get(field.name), field.type)
    elif types.is_nested(kind) and isinstance(value, list) and not types.is_struct(kind):
        for part in value:
            _check_maps(part, kind.value_type)
