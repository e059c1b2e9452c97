"""Types of columns that pyarrow's functions and DuckDB take, in place of those that only some of them know."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from typing import Any

import pyarrow as pa

from leafbeam.errors import DataError

_MAX_DIGITS = 38  # of a decimal128, and of DuckDB's


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the types that pyarrow's functions and DuckDB take in place of views, 16-bit numbers and wide decimals."""
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def as_plain(rows: Any, source: str) -> Any:
    """Return a table or batch with the types of `plain_schema`. Raises DataError for a value that would change."""
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
                "to 38 digits, or the column as double or text"
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
