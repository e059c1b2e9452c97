"""Pgoutput: the messages of PostgreSQL's own plugin for logical replication, in version 1 of their protocol.

See "Logical Replication Message Formats" in PostgreSQL's documentation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leafbeam.errors import DataError, counted, short_repr

EPOCH_S = 946_684_800  # PostgreSQL's times begin with the year 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """The start of a transaction. lsn: where its commit is in the log."""

    lsn: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """The end of a transaction. end: the position behind it in the log. at: its time, in seconds since 1970."""

    end: int
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a table. is_key: whether it is part of the replica identity."""

    name: str
    type_id: int
    is_key: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """The columns that the rows of a table have from here on."""

    table_id: int
    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChange:
    """A row before and after a change.

    Attributes:
        table_id: The table.
        old: The row before: its replica identity, or all of it; None for a new row, and where its identity did not change.
        new: The row after, without the large columns that the change left as they were; None for a deletion.
        is_whole: Whether `new` has all columns.
    """

    table_id: int
    old: Mapping[str, object] | None = field(default=None, repr=False)
    new: Mapping[str, object] | None = field(default=None, repr=False)
    is_whole: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncation:
    """The removal of all rows of some tables at once."""

    table_ids: tuple[int, ...]


Event = Begin | Commit | Relation | RowChange | Truncation


class Decoder:
    """Reads messages in their order; the rows of a table follow a message with its columns.

    Args:
        load: Returns the value of a type's number and its text.
    """

    def __init__(self, load: Callable[[int, bytes], object]) -> None:
        self._load = load
        self._relations: dict[int, Relation] = {}

    def decode(self, message: bytes) -> Event | None:
        """Return the content of a message; None for kinds that change no row. Raises DataError if it is damaged."""
        kind, reader = message[:1], _Reader(message[1:])
        if kind in (b"I", b"U", b"D"):
            event: Event = self._row_change(kind, reader)
        elif kind == b"B":
            event = Begin(lsn=reader.integer(8))
            reader.take(12)  # its time and number
        elif kind == b"C":
            reader.take(9)  # flags, and where the commit is
            event = Commit(end=reader.integer(8), at=EPOCH_S + reader.signed(8) / 1e6)
        elif kind == b"R":
            event = _relation_of(reader)
            self._relations[event.table_id] = event
        elif kind == b"T":
            count = reader.integer(4)
            reader.take(1)  # options
            event = Truncation(table_ids=tuple(reader.integer(4) for _ in range(reader.checked(count, size=4))))
        elif kind in (b"Y", b"O", b"M"):  # a type's name, an origin, a message of a program
            return None
        else:
            raise DataError(f"it begins with {kind!r}: expected a message of pgoutput's protocol 1")
        reader.end()
        return event

    def _row_change(self, kind: bytes, reader: "_Reader") -> RowChange:
        table_id = reader.integer(4)
        relation = self._relations.get(table_id)
        if relation is None:
            raise DataError(f"it changes table {table_id}, whose columns did not come before it")
        part = reader.take(1)
        old: dict[str, object] | None = None
        if part in (b"K", b"O") and kind != b"I":
            old = self._row(relation, reader)
            if part == b"K":  # all other columns are sent as NULL
                old = {column.name: old[column.name] for column in relation.columns if column.is_key and column.name in old}
            if kind == b"D":
                return RowChange(table_id=table_id, old=old)
            part = reader.take(1)
        if part != b"N" or kind == b"D":
            raise DataError(f"a row begins with {part!r}: expected K, O or N")
        new = self._row(relation, reader)
        if old is not None and len(old) == len(relation.columns):  # all of the row before came with it
            new = {**old, **new}
        return RowChange(table_id=table_id, old=old, new=new, is_whole=len(new) == len(relation.columns))

    def _row(self, relation: Relation, reader: "_Reader") -> dict[str, object]:
        """Return a row's values by column; large ones that did not change are left out."""
        count = reader.integer(2)
        if count != len(relation.columns):
            raise DataError(f"a row of {relation.name} has {counted(count, 'value')}: expected {len(relation.columns)}")
        row: dict[str, object] = {}
        for column in relation.columns:
            form = reader.take(1)
            if form == b"n":
                row[column.name] = None
            elif form == b"t":
                text = reader.take(reader.integer(4))
                try:
                    row[column.name] = self._load(column.type_id, text)
                except (ValueError, OverflowError) as error:
                    raise DataError(f"column {column.name!r} is {short_repr(text)}, which cannot be read ({error})") from None
            elif form != b"u":
                raise DataError(f"column {column.name!r} begins with {form!r}: expected n, t or u")
        return row


def _relation_of(reader: "_Reader") -> Relation:
    table_id = reader.integer(4)
    schema, name = reader.text() or "pg_catalog", reader.text()
    reader.take(1)  # the kind of its replica identity
    columns: list[Column] = []
    for _ in range(reader.checked(reader.integer(2), size=10)):
        flags, column, type_id = reader.integer(1), reader.text(), reader.integer(4)
        reader.take(4)  # the type's modifier
        columns.append(Column(name=column, type_id=type_id, is_key=bool(flags & 1)))
    if len({column.name for column in columns}) < len(columns):
        raise DataError(f"two columns of {schema}.{name} have the same name")
    return Relation(table_id=table_id, name=f"{schema}.{name}", columns=tuple(columns))


class _Reader:
    """Reads a message from its start to its end. All methods raise DataError."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        content = self._content[self._at : self._at + self.checked(count)]
        self._at += count
        return content

    def checked(self, count: int, *, size: int = 1) -> int:
        """Return a number of parts of at least `size` bytes each, for which the rest of the message is long enough."""
        if count * size > len(self._content) - self._at:
            raise DataError("it ends too early")
        return count

    def integer(self, size: int) -> int:
        """Return the next whole number, which has no sign."""
        return int.from_bytes(self.take(size), "big")

    def signed(self, size: int) -> int:
        """Return the next whole number with a sign."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def text(self) -> str:
        """Return the text up to the next byte of 0."""
        end = self._content.find(0, self._at)
        if end < 0:
            raise DataError("it ends within a name")
        content = self.take(end - self._at)
        self._at += 1
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise DataError(f"a name is {short_repr(content)}: expected UTF-8") from None

    def end(self) -> None:
        """Check that nothing is left."""
        if self._at != len(self._content):
            raise DataError(f"it goes on for {counted(len(self._content) - self._at, 'byte')} after its end")
