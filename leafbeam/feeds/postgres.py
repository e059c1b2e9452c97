"""PostgresFeed: the changes of a PostgreSQL publication, by logical replication."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from leafbeam.errors import DataError, FeedError, short_repr
from leafbeam.feeds.batch import START_AGAIN, TRUNCATED, Batch, ItemChange, SourceColumns, Start, check_max_changes
from leafbeam.feeds.pgoutput import Begin, Commit, Decoder, Relation, RowChange, Truncation
from leafbeam.feeds.position_file import invalid_position, load_position, save_position
from leafbeam.feeds.publication import Database, Publication, TableCopy, lsn_of, text_of_lsn
from leafbeam.feeds.replication import ReplicationStream
from leafbeam.json_reader import Json

_SEEN_S = 10.0  # between two records of what was read of a log that changes no item
_ANSWER_S = 0.1  # within which the database usually says how far everything is sent
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("system", "lsn", "seen", "key", "until_lsn"), str),
    **dict.fromkeys(("change", "until_change"), int),
    "copied": bool,
}

Place = tuple[int, int]  # the end of a transaction in the log, and the number of changes of the next one


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A position in a publication.

    All transactions up to `lsn` are made, and the first `change` changes of the next one. No transaction between `lsn` and
    `seen` changes an item. Two servers that begin alike have the same items if `lsn` and `change` are the same.

    Attributes:
        system: The number that the database system got when it was created.
        lsn: The position in its log behind the last transaction that is made.
        change: The changes of the transaction after it that are made.
        seen: The position up to which the log is read.
        copied: Whether the rows that were there at first are put.
        key: The key of the batch under way, where a file keeps the position; empty without one.
        until: The end of that batch.
    """

    system: str
    lsn: int
    change: int = 0
    seen: int
    copied: bool
    key: str = ""
    until: Place | None = None

    def as_json(self) -> dict[str, object]:
        """Return it as JSON values."""
        content: dict[str, object] = {
            "system": self.system,
            "lsn": text_of_lsn(self.lsn),
            "change": self.change,
            "seen": text_of_lsn(self.seen),
            "copied": self.copied,
        }
        if self.until is not None:
            content |= {"key": self.key, "until_lsn": text_of_lsn(self.until[0]), "until_change": self.until[1]}
        return content

    @classmethod
    def of(cls, content: Json, where: str) -> "Position":
        """Return what `as_json` made. where: for messages. Raises FeedError."""
        try:
            wrong = next((name for name, value in content.items() if type(value) is not _TYPES[name]), None)
            if wrong is not None:
                raise TypeError(f"{wrong} is {short_repr(content[wrong])}")
            fields: dict[str, Any] = {**content, "lsn": lsn_of(content["lsn"]), "seen": lsn_of(content["seen"])}
            if "key" in fields:
                fields["until"] = (lsn_of(fields.pop("until_lsn")), fields.pop("until_change"))
            position = cls(**fields)
            if position.seen < position.lsn or position.change < 0:
                raise ValueError("its numbers contradict each other")
        except (ValueError, TypeError, KeyError) as error:
            raise invalid_position(where, error) from error
        return position


class PostgresFeed:
    """The rows of a published table, then its changes in the order of their commits, which a replication slot keeps.

    At first all rows are copied as they are at one position of the log. A copy that a crash ended begins anew, after the
    deletions that came since. Changes of a large transaction may be in several batches.

    Args:
        publication: The publication, its slot and its database.
        position: A JSON file that says how far the catalog has followed it; or the position of the last batch that was made,
            where the catalog keeps it, empty at first.
        columns: The columns that are taken.
        start: Where to begin without a position: with all rows, or with the changes that the slot has.
        max_changes: The largest number of changes of a batch.

    Raises:
        FeedError: If the publication cannot be followed, or its slot no longer has the changes after the position.
    """

    def __init__(
        self,
        publication: Publication,
        position: Path | Mapping[str, object],
        *,
        columns: SourceColumns | None = None,
        start: Start = "beginning",
        max_changes: int = 1000,
    ) -> None:
        check_max_changes(max_changes)
        self.name, self._publication = str(publication), publication
        self._columns, self._max_changes = columns or SourceColumns(), max_changes
        self._path = position if isinstance(position, Path) else None
        known, where = load_position(position, self.name)
        self._copy: TableCopy | None = None
        self._stream: ReplicationStream | None = None
        self._complete_until: float | None = None
        self._goal: tuple[int, float] | None = None  # the end of the log at a time
        self._is_at_end = False
        self._seen_at = time.monotonic()
        self._database = Database(publication)
        try:
            self._table = self._database.table(self._columns.item_id)
            self._position = self._begin(start) if known is None else self._checked(Position.of(known, where))
            if not self._position.copied:
                self._copy = TableCopy(publication, self._table, self._database.connection)
            self._stream = self._start()
        except BaseException:
            self.close()
            raise
        self._copied = self._copied_changes()

    @property
    def position(self) -> dict[str, object]:
        """Return how far the publication is followed."""
        return replace(self._position, key="", until=None).as_json()

    @property
    def complete_until(self) -> float | None:
        """Return the time before which no change is missing (see CatalogFeed)."""
        return self._complete_until

    @property
    def is_at_end(self) -> bool:
        """Return whether the last `read` found nothing that was committed before it began."""
        return self._is_at_end

    def read(self, wait_s: float) -> Batch | None:
        """Return the next batch (see Feed)."""
        give_up = time.monotonic() + wait_s
        if self._copy is not None:
            return self._next_of_copy(give_up) if self._is_drained(self._copy, give_up) else None
        assert self._stream is not None
        if self._goal is None:
            at = time.time()
            self._goal = (self._database.log_end(), at)
        if self._reached < self._goal[0]:
            self._stream.ask()
        is_full = self._read_changes(give_up)
        if self._changes or self._bad:
            if self._in_transaction and not is_full:  # its other changes are on their way
                return None
            self._is_at_end = False
            return self._next_batch()
        return self._note_end()

    def commit(self, batch: Batch) -> None:
        """Record that a batch is done (see Feed)."""
        position = Position.of(batch.position, self.name)
        was_copying = self._copy
        self._save(position)
        if was_copying is not None and position.copied:
            was_copying.close()
            self._copy, self._stream = None, self._start()
        if self._copy is None:
            assert self._stream is not None
            self._stream.confirm(position.seen)
            self._complete_until = max(self._complete_until or 0.0, self._committed_at) or None

    def close(self) -> None:
        """End the connections; the slot stays."""
        for part in (self._stream, self._copy, self._database):
            if part is not None:
                part.close()

    def _begin(self, start: Start) -> Position:
        """Return the position at which a slot begins that was not followed yet; it is created if there is none."""
        begin = self._database.find_slot()
        if begin is None:
            begin = self._database.create_slot()
        position = Position(system=self._database.system, lsn=begin, seen=begin, copied=start == "now")
        self._save(position)
        return position

    def _checked(self, position: Position) -> Position:
        """Return a position after which the slot has all changes. Raises FeedError for others."""
        name, slot, seen = self.name, self._publication.slot, text_of_lsn(position.seen)
        if position.system != self._database.system:
            raise FeedError(
                f"{name}: the catalog has followed another database system ({position.system}, and this is "
                f"{self._database.system}). {START_AGAIN}"
            )
        begin, end = self._database.find_slot(), self._database.log_end()
        if begin is None:
            raise FeedError(f"{name}: slot {slot} is gone, and with it the changes since {seen}. {START_AGAIN}")
        if begin > position.seen:
            raise FeedError(
                f"{name}: the catalog has followed it up to {seen}, but slot {slot} has only the changes since "
                f"{text_of_lsn(begin)}. {START_AGAIN}, and with a slot that is older than its position"
            )
        if position.seen > end:
            raise FeedError(
                f"{name}: the catalog has followed it up to {seen}, but the database's log ends at {text_of_lsn(end)}: it was "
                f"restored from an older state. {START_AGAIN}"
            )
        return position

    def _start(self) -> ReplicationStream:
        """Return the changes after the position, of which none is read yet."""
        self._decoder = Decoder(self._database.value_of)
        self._held: bytes | None = None  # a message that belongs to the next batch
        self._place: Place = (self._position.lsn, self._position.change)
        self._skipped = self._position.change  # changes of the first transaction that are made already
        self._in_transaction, self._number, self._commit_lsn = False, 0, 0
        self._committed_at = 0.0
        self._changes: list[ItemChange] = []
        self._bad: dict[str, str] = {}
        return ReplicationStream(self._publication, self._position.seen)

    def _save(self, position: Position) -> None:
        if self._path is not None:
            save_position(self._path, position.as_json())
        self._position = position

    @property
    def _reached(self) -> int:
        """Return the position before which all transactions are read."""
        return self._place[0] if self._stream is None else max(self._stream.sent, self._place[0])

    def _receive(self, give_up: float) -> bytes | None:
        assert self._stream is not None
        message, self._held = self._held, None
        return message or self._stream.receive(max(0.0, give_up - time.monotonic()))

    def _read_changes(self, give_up: float) -> bool:
        """Collect the changes that are there, or the first ones that come; return whether the batch is full."""
        while True:
            if self._position.until is not None:  # a batch that a crash ended is read again with the same end
                is_full = self._place == self._position.until
                if is_full:
                    return True
            else:
                is_full = len(self._changes) >= self._max_changes
            can_wait = self._in_transaction or not (self._changes or self._bad)
            message = self._receive(give_up if can_wait else 0.0)
            if message is None:
                return is_full
            if is_full and message[:1] != b"C":  # a commit still belongs to it
                self._held = message
                return True
            self._take(message)

    def _take(self, message: bytes) -> None:
        """Note what a message says."""
        try:
            event = self._decoder.decode(message)
        except DataError as error:
            place = f"transaction {text_of_lsn(self._commit_lsn)}, change {self._number + 1}"
            raise FeedError(f"{self.name}, {place}: a message cannot be read: {error}") from error
        if isinstance(event, Begin):
            self._in_transaction, self._number, self._commit_lsn = True, 0, event.lsn
        elif isinstance(event, Commit):
            self._in_transaction = False
            if self._number:
                self._place, self._committed_at, self._skipped = (event.end, 0), event.at, 0
        elif isinstance(event, Relation):
            self._check_table(event.table_id, event.name)
            self._database.learn(column.type_id for column in event.columns)
        elif isinstance(event, RowChange | Truncation):
            self._number += 1
            if self._number > self._skipped:
                self._place = (self._place[0], self._number)
                self._add(event)

    def _check_table(self, table_id: int, name: str) -> None:
        if table_id != self._table.table_id:
            raise FeedError(f"{self.name} has the table {name} too, and {self._table} is followed: expected one with one table")

    def _add(self, event: RowChange | Truncation) -> None:
        """Add the changes of items that a change of a row, or of all rows, makes."""
        where = f"transaction {text_of_lsn(self._commit_lsn)}, change {self._number}"
        try:
            if isinstance(event, Truncation):
                raise DataError(TRUNCATED)
            before = None if event.old is None else self._columns.id_of(event.old)
            operation, row = "delete", {"item_id": before}
            if event.new is not None:
                operation, row = self._columns.change(event.new, is_whole=event.is_whole)
                if before is not None and before != row["item_id"]:  # the item got another id
                    if operation == "patch":
                        raise DataError(
                            f"item {short_repr(before)} became {short_repr(row['item_id'])}, and large columns that did not "
                            "change did not come with it: ALTER TABLE ... REPLICA IDENTITY FULL sends them from then on"
                        )
                    self._changes.append(ItemChange(operation="delete", row={"item_id": before}, place=f"{where}, before"))
            self._changes.append(ItemChange(operation=operation, row=row, place=where))
        except DataError as error:
            self._bad[where] = str(error)

    def _next_batch(self) -> Batch:
        """Return the changes that were read."""
        key = self._position.key or uuid4().hex
        (lsn, change), changes, bad = self._place, self._changes, self._bad
        if self._path is not None:
            self._save(replace(self._position, key=key, until=self._place))
        self._changes, self._bad = [], {}
        after = replace(self._position, lsn=lsn, change=change, seen=max(lsn, self._position.seen), key="", until=None)
        return self._batch_of(changes, bad, after, key)

    def _batch_of(self, changes: list[ItemChange], bad: Mapping[str, str], after: Position, key: str = "") -> Batch:
        end = {"lsn": after.lsn, "change": after.change}
        return Batch(changes=tuple(changes), bad=bad, key=key or uuid4().hex, end=end, position=after.as_json())

    def _note_end(self) -> Batch | None:
        """Note that nothing is left, and at times return a batch without changes that says how far the log is read."""
        reached = self._reached
        self._is_at_end = self._goal is not None and not self._in_transaction and reached >= self._goal[0]
        if self._is_at_end and self._goal is not None:
            self._complete_until, self._goal = max(self._complete_until or 0.0, self._goal[1]), None
        before, (lsn, change) = self._position, self._place
        seen = before.seen if change else max(reached, before.seen)
        is_due = time.monotonic() - self._seen_at > _SEEN_S and seen > before.seen
        if self._in_transaction or not (is_due or (lsn, change) != (before.lsn, before.change)):
            return None
        self._seen_at = time.monotonic()
        after = replace(before, lsn=lsn, change=change, seen=max(seen, lsn), key="", until=None)
        return self._batch_of([], {}, after)

    def _is_drained(self, copy: TableCopy, give_up: float) -> bool:
        """Return whether all transactions before the copy are read; of their changes, only deletions are kept.

        They matter where a copy begins anew: rows that the first one put may be gone.
        """
        while self._stream is not None and self._stream.sent < copy.at and self._commit_lsn < copy.at:
            message = self._receive(min(give_up, time.monotonic() + _ANSWER_S))
            if message is None:
                if time.monotonic() >= give_up:
                    return False
                self._stream.ask()
                continue
            self._take(message)
            if self._changes and self._changes[-1].operation != "delete":
                self._changes.pop()
            self._bad.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        return True

    def _copied_changes(self) -> Iterator[ItemChange | tuple[str, str]]:
        """Yield the deletions before the copy, then its rows; or a place in it and the problem there."""
        yield from self._changes
        copy = self._copy
        while copy is not None:
            rows = copy.rows(self._max_changes)
            for row in rows:
                where = f"the copy of {self._table}, {self._columns.item_id} {short_repr(row.get(self._columns.item_id))}"
                try:
                    yield ItemChange(operation="put", row=self._columns.row(row), place=where)
                except DataError as error:
                    yield where, str(error)
            if len(rows) < self._max_changes:
                return

    def _next_of_copy(self, give_up: float) -> Batch:
        """Return the next changes of the copy; the position moves with the last ones."""
        assert self._copy is not None
        found = list(itertools.islice(self._copied, self._max_changes))
        after = self._position
        if len(found) < self._max_changes:
            after = replace(after, lsn=self._copy.at, change=0, seen=self._copy.at, copied=True)
        changes = [one for one in found if isinstance(one, ItemChange)]
        return self._batch_of(changes, dict(one for one in found if not isinstance(one, ItemChange)), after)
