"""Attributes of items as columns of the catalog's table: values of the types that the table has, or their mistakes."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import cast

import pyarrow as pa

from leafbeam.errors import short_repr
from leafbeam.tables.table import listed, type_name

_FINER = re.compile(r"[.,]\d{6}(\d+)")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(_DAY.pattern + r"([Tt ].*)?")
_CLOCK = re.compile(r"[0-9]{2}:[0-9]{2}.*")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?")  # 007 is a name, not a number
_FLOAT_DIGITS = 15  # significant digits of any number that a float64 keeps
_MAX_EXACT = 1 << 53  # a float64 below it has all its whole digits
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)
_NAMES = {"string": "text", "bool": "true or false", "double": "a number", "float": "a number", "int64": "a whole number"}


class _MisfitError(ValueError):
    """A part of a value does not fit. The message names the part."""


def table_of(rows: Sequence[Mapping[str, object]], schema: pa.Schema, names: Sequence[str]) -> tuple[pa.Table, dict[int, str]]:
    """Return the columns `names` of some rows, with null where a row has no value, and the problems of rows by index."""
    columns: dict[str, pa.Array] = {}
    problems: dict[int, str] = {}
    for name in names:
        columns[name], problems_of_column = column_of([row.get(name) for row in rows], schema.field(name).type)
        for index, problem in problems_of_column.items():
            problems.setdefault(index, f"{name}: {problem}")
    return pa.table(columns), problems


def column_of(values: Sequence[object], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return a column of a type, with null where a value does not fit, and the problems of values by index.

    Numbers are not accepted as text, nor booleans as numbers. In a column of times or exact numbers, text is read as these; a
    time without a zone is UTC.
    """
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    fitting: list[object] = []
    problems: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            fitting.append(None if value is None else _fitting(value, kind))
        except _ERRORS as error:
            fitting.append(None)
            problems[index] = str(error) if isinstance(error, _MisfitError) else _problem(value, kind)
    try:
        return pa.array(fitting, kind), problems
    except _ERRORS:
        for index, value in enumerate(fitting):
            try:
                pa.array([value], kind)
            except _ERRORS:
                problems[index], fitting[index] = _problem(values[index], kind), None
        return pa.array(fitting, kind), problems


def _problem(value: object, kind: pa.DataType) -> str:
    expected = _NAMES.get(str(kind), f"of type {kind}")
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        expected += f": expected {type_name(kind)} as text in ISO 8601, with at most {_DIGITS[kind.unit]} digits of a second"
    elif pa.types.is_date(kind):
        expected += ": expected a date as text, such as 2026-11-22"
    return f"{short_repr(value)} is not {expected}"


def _fitting(value: object, kind: pa.DataType) -> object:
    """Return a value that pyarrow converts without loss. Raises one of `_ERRORS` if it does not fit."""
    types = pa.types
    if types.is_dictionary(kind):
        return _fitting(value, kind.value_type)
    if types.is_nested(kind):
        return _fitting_parts(value, kind)
    if isinstance(value, bool) != types.is_boolean(kind):
        raise TypeError
    if types.is_integer(kind) and isinstance(value, float | Decimal):
        if not isfinite(value) or value != int(value):
            raise ValueError
        if isinstance(value, float) and abs(value) >= _MAX_EXACT:
            raise _MisfitError(f"{value} may have lost digits: write such a number without a fraction and an exponent")
        return int(value)
    if isinstance(value, float) and not isfinite(value):
        raise ValueError
    if types.is_float32(kind) and isinstance(value, float):
        stored = pa.scalar(value, kind).as_py()
        if not isfinite(stored) or (value and not stored):
            raise _MisfitError(f"{value} is too large or too small for a number of 32 bits")
    if types.is_decimal(kind) and isinstance(value, int | float | str):
        return _exact(value, kind)
    if types.is_temporal(kind) and isinstance(value, str | date | time):
        return _moment(value if isinstance(value, str) else value.isoformat(), kind)
    if types.is_temporal(kind) and isinstance(value, int | float):
        raise TypeError
    return value


def _fitting_parts(value: object, kind: pa.DataType) -> object:
    """Return a list, a map as pairs or an object, with parts that fit. A null as a key would end the process in pyarrow."""
    types = pa.types
    if types.is_struct(kind):
        if not isinstance(value, Mapping):
            raise TypeError
        fields, names = cast("Mapping[object, object]", value), [field.name for field in kind]
        unknown = next((name for name in fields if name not in names), None)
        if unknown is not None:
            raise _MisfitError(f"there is no field {short_repr(unknown)}: an object of this column has {listed(names)}")
        return {field.name: _fitting_part(fields.get(field.name), field.type, "field", field.name) for field in kind}
    if types.is_map(kind):
        pairs: object = list(cast("Mapping[object, object]", value).items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
            raise TypeError
        keys = [_fitting_part(key, kind.key_type, "key", key) for key, _ in pairs]
        if None in keys or len(set(map(repr, keys))) < len(keys):
            raise TypeError
        return [(key, _fitting_part(part, kind.item_type, "value of", key)) for key, (_, part) in zip(keys, pairs, strict=True)]
    if not isinstance(value, list) or types.is_union(kind):
        raise TypeError
    parts = cast("list[object]", value)
    return [_fitting_part(part, kind.value_type, "part", number) for number, part in enumerate(parts, 1)]


def _fitting_part(value: object, kind: pa.DataType, role: str, name: object) -> object:
    """Return a part of a value as `_fitting` does. Raises _MisfitError with the name of the part."""
    try:
        return None if value is None else _fitting(value, kind)
    except _ERRORS as error:
        problem = str(error) if isinstance(error, _MisfitError) else _problem(value, kind)
        raise _MisfitError(f"{role} {short_repr(name)}: {problem}") from None


def _exact(value: float | str, kind: pa.DataType) -> Decimal:
    """Return the exact number that was written.

    A float has lost what was written beyond 15 digits, before the point or after it.
    """
    if isinstance(value, float) and (
        abs(value) >= 10**_FLOAT_DIGITS or len(Decimal(str(value)).normalize().as_tuple().digits) > _FLOAT_DIGITS
    ):
        raise _MisfitError(f"{value} may have lost digits: write a number of more than {_FLOAT_DIGITS} digits as text")
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise ValueError
    exact = pa.scalar(str(value)).cast(kind).as_py()
    if exact != Decimal(str(value)):  # of more than 38 digits pyarrow keeps others
        raise ValueError
    return exact


def _moment(text: str, kind: pa.DataType) -> object:
    """Return a date, or a time as a number in the column's unit, since 1970 or midnight. Raises ValueError if it is finer."""
    pattern = _DAY if pa.types.is_date(kind) else _CLOCK if pa.types.is_time(kind) else _TIME
    if not pattern.fullmatch(text):  # Python also reads 20261122 and the week 2026-W47-7
        raise ValueError
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
