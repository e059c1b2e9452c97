"""The content that feeds read of other programs: Debezium's envelopes, PostgreSQL's messages, positions of followed tables."""

import functools
import tempfile
from pathlib import Path

from leafbeam.feeds import SourceColumns
from leafbeam.feeds.debezium import read_envelope
from leafbeam.feeds.pgoutput import Decoder, RowChange
from leafbeam.feeds.position_file import load_position
from leafbeam.feeds.table import Position

SEPARATOR = b"\n---\n"  # between a message's value and its key


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def fuzz_debezium(data: bytes) -> None:
    """A message: its value and perhaps its key."""
    value, separator, key = data.partition(SEPARATOR)
    operation, row = read_envelope(value, key if separator else None, SourceColumns(item_id="sku"))
    assert operation in ("put", "patch", "delete")
    assert type(row["item_id"]) in (int, str)


def fuzz_pgoutput(data: bytes) -> None:
    """Messages of logical replication, each with its length before it."""
    decoder, rest = Decoder(lambda type_id, text: int(text) if type_id == 20 else text.decode()), data
    while rest:
        length = int.from_bytes(rest[:4], "big")
        message, rest = rest[4 : 4 + length], rest[4 + length :]
        event = decoder.decode(message)
        if isinstance(event, RowChange):
            assert event.old is not None or event.new is not None


def fuzz_position(data: bytes) -> None:
    """The file of a position."""
    path = Path(_temporary().name) / "position.json"
    path.write_bytes(data)
    position = _position_in(path)
    position.save(path)
    assert _position_in(path) == position


def _position_in(path: Path) -> Position:
    content, where = load_position(path, "a table")
    assert content is not None
    return Position.of(content, where)
