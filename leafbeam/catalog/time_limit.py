"""TimeLimit: interrupts SQL that runs for too long."""

# duckdb carries no types. Evaluated annotations would keep its types alive at the exit of Python (see sessions.py).
from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import duckdb

from leafbeam.catalog.durations import MAX_RULE_S
from leafbeam.errors import ArgumentError, DataError

DEFAULT_S = 60.0
_AGAIN_S = 0.05


class TimeLimit:
    """A time limit of each block of SQL statements. `stop` ends all of them.

    DuckDB looks for an interrupt between chunks of 2,048 rows: one call of a function on one row cannot be interrupted.
    Raises ArgumentError unless 0 < seconds <= a day.
    """

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds <= MAX_RULE_S:
            raise ArgumentError(f"rule_timeout_s={seconds!r}: expected seconds, above 0 and up to a day")
        self.seconds = seconds
        self.stopped = False
        self._changed = threading.Condition()
        self._running: dict[object, tuple[float, duckdb.DuckDBPyConnection]] = {}  # deadline and connection of each block
        self._watcher: threading.Thread | None = None

    @contextmanager
    def enforce(self, connection: duckdb.DuckDBPyConnection) -> Generator[None]:
        """Interrupt the connection's statements in the block, with duckdb.InterruptException, once they exceed the
        limit. Cost: microseconds.

        Raises DataError after `stop`.
        """
        block = object()
        with self._changed:
            if self.stopped:
                raise self.closed_error()
            self._running[block] = time.monotonic() + self.seconds, connection
            if self._watcher is None:  # else it looks again before this deadline
                self._watcher = threading.Thread(target=self._watch, name="leafbeam-rule-timeout", daemon=True)
                self._watcher.start()
        try:
            yield
        finally:
            with self._changed:
                del self._running[block]
                if self.stopped:
                    self._changed.notify_all()

    def stop(self) -> None:
        """Interrupt every running block, and refuse to start another."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def closed_error(self) -> DataError:
        """Return the error that evaluations raise after `stop`, and when `stop` interrupts them."""
        return DataError("the catalog is closed: no rule is evaluated any more", may_pass=True)

    def join(self) -> None:
        """Wait, after `stop`, for the watching thread to end: it holds connections until nothing runs."""
        watcher = self._watcher
        if watcher is not None and not self._running:
            watcher.join(1.0)

    def _watch(self) -> None:
        """Interrupt blocks that are over their deadline. The thread ends once nothing has run for as long as the limit."""
        with self._changed:
            self._changed.wait(self.seconds)
            while self._running:
                now = time.monotonic()
                over = [connection for deadline, connection in self._running.values() if self.stopped or deadline <= now]
                for connection in over:
                    connection.interrupt()
                # Again soon, because an interrupt between two statements of a block is lost.
                self._changed.wait(_AGAIN_S if over else min(deadline for deadline, _ in self._running.values()) - now)
            self._watcher = None
