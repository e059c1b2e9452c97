"""Rows of an Arrow IPC stream that a client sent: no larger in memory than its bytes allow."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from leafbeam.errors import DataError
from leafbeam.tables.as_json import rows_of

_MAX_COLUMNS = 1000
_SLICE_VALUES = 20_000  # made objects at a time: some milliseconds in which no other thread runs
_RECORD_BATCH, _DICTIONARY = 3, 2  # headers of messages (Message.fbs of Arrow)


def rows_of_stream(body: bytes, *, max_rows: int, max_values: int) -> Iterator[dict[str, Any]]:
    """The rows of a stream, a null being a field that is not there; those beyond `max_rows` are not read.

    Times and exact numbers are text, as in JSON: a change is logged as JSON, and has to be the same when it is read there.
    Compressed bodies, dictionaries, views and nested types are refused: a short body could make them as large as it likes.
    max_values: rows times columns, and elements of lists, of the whole stream. Raises DataError for more, and where the bytes
    are no such stream.
    """
    most = max_values
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
            if _is_compressed(message.metadata.to_pybytes()):
                raise DataError("the Arrow stream is compressed: send it without compression")
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            _check_schema(reader.schema)
            # Columns of nulls have no bytes, and no row has their fields.
            chosen = [number for number, column in enumerate(reader.schema) if not pa.types.is_null(column.type)]
            max_bytes = len(body)
            for batch in reader:
                num_rows = min(len(batch), max_rows + 1)
                first = batch.select(chosen).slice(0, num_rows)
                first.validate(full=True)
                max_values -= sum(map(_num_values, first.columns))
                if max_values < 0:
                    raise DataError(f"a batch has up to {most:,} values, this Arrow stream more: send it in parts")
                max_bytes -= first.nbytes
                if max_bytes < 0:
                    raise DataError("columns of the Arrow stream share bytes: send each with its own")
                step = max(1, _SLICE_VALUES // max(1, len(chosen)))
                for begin in range(0, num_rows, step) if chosen else ():
                    for row in rows_of(first.slice(begin, step)):
                        yield {name: value for name, value in row.items() if value is not None}
                if not chosen:
                    yield from ({} for _ in range(num_rows))
                max_rows -= len(batch)
                if max_rows < 0:
                    return
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, struct.error) as error:
        raise DataError(f"the body is no Arrow IPC stream that can be read ({str(error)[:200]})") from None


def _check_schema(schema: pa.Schema) -> None:
    if len(schema) > _MAX_COLUMNS:
        raise DataError(f"the Arrow stream has {len(schema):,} columns: expected at most {_MAX_COLUMNS:,}")
    for column in schema:
        kind, types = column.type, pa.types
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if types.is_null(kind):
            continue
        if types.is_fixed_size_list(kind) and kind.list_size == 0:
            raise DataError(f"column {column.name[:80]!r} of the Arrow stream has lists of no element: leave it out")
        kind = kind.value_type if is_list else kind
        is_text = types.is_string(kind) or types.is_large_string(kind)
        is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        is_moment = types.is_temporal(kind) and not (types.is_duration(kind) or types.is_interval(kind))
        if not (is_text or is_number or (not is_list and (is_moment or types.is_decimal(kind)))):
            name = column.name[:80]
            raise DataError(
                f"column {name!r} of the Arrow stream is {column.type}: expected numbers, text, times, or lists of numbers or "
                "text"
            )


def _num_values(column: pa.Array) -> int:
    """Of its rows, and of the lists in them."""
    is_nested = pa.types.is_nested(column.type)
    return len(column) + (len(column.flatten()) if is_nested else 0)


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message's buffers are compressed, by its header. Raises struct.error where it is damaged."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    (kind,) = struct.unpack_from("<B", metadata, at) if (at := _field(metadata, root, 1)) else (0,)
    header = _table(metadata, root, 2)
    if kind == _DICTIONARY and header:
        header = _table(metadata, header, 1)
    elif kind != _RECORD_BATCH:
        return False
    return bool(header and _field(metadata, header, 3))


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table is; 0 if it has none."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number) if 4 + 2 * number < size else (0,)
    return table + offset if offset else 0


def _table(data: bytes, table: int, number: int) -> int:
    """Where the table of a field begins; 0 if there is none."""
    at = _field(data, table, number)
    return at + struct.unpack_from("<I", data, at)[0] if at else 0
