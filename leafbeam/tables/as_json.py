"""Rows of Arrow tables as JSON has them."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from leafbeam.tables.plain_types import Column


def rows_of(table: pa.Table | pa.RecordBatch, *, exact: bool = True) -> list[dict[str, object]]:
    """Return the rows as JSON values. Exact numbers and times become text, times with all their digits.

    exact: raise OverflowError for times beyond the years 1 to 9999; without it, such a time becomes a text that says so.
    """
    for number, field in enumerate(table.schema):
        if (
            pa.types.is_temporal(field.type)
            and getattr(field.type, "unit", "") == "ns"
            and not pa.types.is_duration(field.type)
        ):
            table = table.set_column(number, field.name, _of_nanoseconds(table.column(number)))
    try:
        rows = table.to_pylist()
    except OverflowError:
        if exact:
            raise
        values = (map(_value_of, column) for column in table.columns)
        rows = [dict(zip(table.column_names, row, strict=True)) for row in zip(*values, strict=True)]
    return msgspec.to_builtins(rows, enc_hook=str)


def _value_of(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except OverflowError:  # such as DuckDB's infinity
        return "a time beyond the years 1 to 9999"


def _of_nanoseconds(times: Column) -> Column:
    """Return times as microseconds if none is finer, else as text: pyarrow would turn nanoseconds into pandas objects."""
    kind = times.type
    try:
        return times.cast(pa.time64("us") if pa.types.is_time(kind) else pa.timestamp("us", kind.tz))
    except pa.ArrowInvalid:
        if pa.types.is_time(kind):
            return times.cast(pa.string())
        utc = times if kind.tz is None else times.cast(pa.timestamp("ns", "UTC"))
        text = pc.strftime(utc, format="%Y-%m-%dT%H:%M:%S")  # with all digits of the second
        return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")
