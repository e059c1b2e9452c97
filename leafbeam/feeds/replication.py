"""ReplicationStream: the messages that PostgreSQL sends of a replication slot, as they come.

See "Streaming Replication Protocol" in PostgreSQL's documentation.
"""

import select
import struct
import time

from leafbeam.errors import FeedError
from leafbeam.extras import optional_imports
from leafbeam.feeds.pgoutput import EPOCH_S
from leafbeam.feeds.publication import Publication, start_replication

with optional_imports("leafbeam.feeds.PostgresFeed", "postgres"):
    import psycopg

_STATUS_S = 10.0  # between two words to the database, which ends a connection that is silent for a minute
_RELEASED_S = 2.0  # for a slot whose last connection has just ended
_HEADER = 25  # bytes before a message: its kind, position, end of the log and time
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")


class ReplicationStream:
    """The changes of a slot from a position on, which are sent when their transactions are committed.

    Attributes:
        sent: All transactions that were committed before this position have been received.

    Args:
        publication: The publication and its slot.
        lsn: The position.

    Raises:
        FeedError: If the slot cannot be read; so do all methods.
    """

    def __init__(self, publication: Publication, lsn: int) -> None:
        self._publication = publication
        self.sent = self._confirmed = lsn
        self._connection = publication.connect(replication=True)
        self._said_at = time.monotonic()
        self._asked_at: float | None = None  # the time of a question that is not answered yet
        try:
            with publication.failures():
                self._start(lsn)
        except BaseException:
            self._connection.close()
            raise

    def _start(self, lsn: int) -> None:
        give_up = time.monotonic() + _RELEASED_S
        while True:
            try:
                start_replication(self._publication, self._connection, lsn)
                return
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """End the connection; the slot stays."""
        self._connection.close()

    def receive(self, wait_s: float) -> bytes | None:
        """Return the next message, or None if none came within `wait_s` seconds."""
        give_up = time.monotonic() + wait_s
        with self._publication.failures():
            self._connection.pgconn.consume_input()
            while True:
                length, content = self._connection.pgconn.get_copy_data(1)
                if length < 0:
                    self._raise_end()
                if length:
                    self._asked_at = None
                    frame = bytes(content)
                    if frame[:1] == b"w":
                        return frame[_HEADER:]
                    _, self.sent, _, wants_answer = _KEEPALIVE.unpack(frame)
                    if wants_answer:
                        self._say()
                    continue
                now = time.monotonic()
                self._check_alive(now)
                if now >= give_up:
                    return None
                select.select([self._connection.pgconn.socket], [], [], min(give_up - now, 1.0))
                self._connection.pgconn.consume_input()

    def confirm(self, lsn: int) -> None:
        """Tell the database that it need not keep what was committed before a position."""
        self._confirmed = lsn
        with self._publication.failures():
            self._say()

    def ask(self) -> None:
        """Ask how far everything is sent; the answer is in `sent` after a later `receive`."""
        with self._publication.failures():
            self._say(wants_answer=True)

    def _check_alive(self, now: float) -> None:
        if self._asked_at is not None and now - self._asked_at > self._publication.timeout_s:
            raise FeedError(f"{self._publication}: the database did not answer within {self._publication.timeout_s:g} s")
        if now - self._said_at > _STATUS_S:
            self._say(wants_answer=True)

    def _say(self, *, wants_answer: bool = False) -> None:
        lsn, at = self._confirmed, int((time.time() - EPOCH_S) * 1e6)
        self._said_at = time.monotonic()
        if wants_answer and self._asked_at is None:
            self._asked_at = self._said_at
        self._connection.pgconn.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, at, wants_answer))
        self._connection.pgconn.flush()

    def _raise_end(self) -> None:
        result = self._connection.pgconn.get_result()
        if result is not None and result.error_message:
            raise psycopg.errors.error_from_result(result)
        raise FeedError(f"{self._publication}: the database ended the replication, perhaps because it stops")
