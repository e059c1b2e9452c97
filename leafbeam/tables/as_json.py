"""Rows of Arrow tables as JSON has them."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from typing import Any

import msgspec
import pyarrow as pa


def rows_of(table: pa.Table | pa.RecordBatch, *, exact: bool = True) -> list[dict[str, Any]]:
    """Return the rows as JSON values: times and exact numbers are text.

    exact: raise ArrowInvalid for times finer than microseconds; else the rest is cut off.
    """
    # Of nanoseconds pyarrow would make values of pandas, where that is installed.
    schema = pa.schema([field.with_type(_in_microseconds(field.type)) for field in table.schema])
    table = table if schema.equals(table.schema) else table.cast(schema, safe=exact)
    try:
        rows = table.to_pylist()
    except OverflowError:
        if exact:
            raise
        values = (map(_value_of, column) for column in table.columns)
        rows = [dict(zip(table.column_names, row, strict=True)) for row in zip(*values, strict=True)]
    return msgspec.to_builtins(rows, enc_hook=str)


def _value_of(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except OverflowError:  # such as DuckDB's infinity
        return "a time beyond the years 1 to 9999"


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if kind == pa.time64("ns") else kind
