"""Conversion of rare column types into types that both pyarrow's functions and DuckDB accept."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from typing import Any

import pyarrow as pa

from leafbeam.errors import DataError

_MAX_DIGITS = 38  # of a decimal128, and of a decimal of DuckDB


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with common types in place of views, 16-bit numbers, wide decimals and durations of nanoseconds."""
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def as_plain(rows: Any, source: str) -> Any:
    """Return a table or batch with the types of `plain_schema`. Raises DataError if a value would change."""
    schema = plain_schema(rows.schema)
    if schema.equals(rows.schema):
        return rows.replace_schema_metadata(None)
    columns: list[Any] = []
    for name, kind, column in zip(schema.names, schema.types, rows.columns, strict=True):
        try:
            columns.append(column.cast(kind))
        except pa.ArrowException as error:
            raise DataError(
                f"{source}, column {name!r} of the type {column.type} cannot be read as {kind} ({error}): write numbers of up "
                "to 38 digits, or write the column as double or text"
            ) from error
    return type(rows).from_arrays(columns, schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_decimal256(kind):
        return pa.decimal128(min(kind.precision, _MAX_DIGITS), min(kind.scale, _MAX_DIGITS))
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float32()}
    return {**plain, pa.duration("ns"): pa.duration("us")}.get(kind, kind)
