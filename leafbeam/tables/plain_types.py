"""Conversion of rare column types into types that both pyarrow's functions and DuckDB accept."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from typing import TypeAlias

import pyarrow as pa

from leafbeam.errors import DataError

Column: TypeAlias = pa.Array | pa.ChunkedArray
_MAX_DIGITS = 38  # of a decimal128, and of a decimal of DuckDB


def plain_schema(schema: pa.Schema, source: str) -> pa.Schema:
    """Return a schema with common types in place of views, 16-bit numbers, wide decimals and durations of nanoseconds.

    Dictionaries stay only as the type of a whole column of text. Raises DataError for a column with values of several types.
    """
    for field in schema:
        if _has_union(field.type):
            raise DataError(
                f"{source}, column {field.name!r} holds values of several types ({field.type}): write them as one type, such "
                "as text"
            )
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def as_plain(rows: pa.Table | pa.RecordBatch, source: str) -> pa.Table | pa.RecordBatch:
    """Return a table or batch with the types of `plain_schema`, in which the values of each dictionary are distinct.

    Raises DataError if a value would change.
    """
    schema = plain_schema(rows.schema, source)
    if schema.equals(rows.schema) and all(map(_is_distinct, rows.columns)):
        return rows.replace_schema_metadata(None)
    columns: list[Column] = []
    for name, kind, column in zip(schema.names, schema.types, rows.columns, strict=True):
        try:
            if pa.types.is_dictionary(column.type):
                columns.append(column if column.type == kind and _is_distinct(column) else _converted(column, kind))
            else:
                columns.append(column.cast(kind))
        except pa.ArrowException as error:
            raise DataError(
                f"{source}, column {name!r} of the type {column.type} cannot be read as {kind} ({error}): write numbers of up "
                "to 38 digits, or write the column as double or text"
            ) from error
    return type(rows).from_arrays(columns, schema=schema)


def _chunks(column: Column) -> list[pa.DictionaryArray]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _is_distinct(column: Column) -> bool:
    """Return whether no dictionary of a column has nulls or a value twice."""
    if not pa.types.is_dictionary(column.type):
        return True
    dictionaries = [chunk.dictionary for chunk in _chunks(column)]
    return all(not values.null_count and len(values.unique()) == len(values) for values in dictionaries)


def _converted(column: Column, kind: pa.DataType) -> Column:
    """Return a column of a dictionary as another type, or as a dictionary of distinct values."""
    parts: list[pa.Array] = []
    for chunk in _chunks(column):
        if pa.types.is_dictionary(kind):
            encoded = chunk.dictionary.take(chunk.indices).dictionary_encode()
            indices = encoded.indices.cast(kind.index_type)
            parts.append(pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=kind.ordered))
        else:
            parts.append(chunk.dictionary.cast(kind).take(chunk.indices))
    return pa.chunked_array(parts, kind) if isinstance(column, pa.ChunkedArray) else parts[0]


def _has_union(kind: pa.DataType) -> bool:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    inner = [field.type for field in fields] + ([kind.value_type] if pa.types.is_dictionary(kind) else [])
    return pa.types.is_union(kind) or any(map(_has_union, inner))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the common type; of a column of text, also a dictionary."""
    types = pa.types
    if types.is_dictionary(kind) and (types.is_string(kind.value_type) or types.is_large_string(kind.value_type)):
        return kind
    return _plain_inner(kind)


def _plain_inner(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_inner(kind.value_type)
    if types.is_map(kind):
        return pa.map_(_plain_inner(kind.key_type), _plain_inner(kind.item_type))
    if types.is_list(kind):
        return pa.list_(_plain_inner(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(_plain_inner(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_inner(kind.value_type), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_inner(field.type)) for field in kind])
    if types.is_decimal(kind) and kind.scale < 0:
        return pa.decimal128(min(kind.precision - kind.scale, _MAX_DIGITS), 0)
    if types.is_decimal256(kind):
        return pa.decimal128(min(kind.precision, _MAX_DIGITS), min(kind.scale, _MAX_DIGITS))
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float32()}
    return {**plain, pa.duration("ns"): pa.duration("us")}.get(kind, kind)
