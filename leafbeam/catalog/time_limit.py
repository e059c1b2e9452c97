"""TimeLimit: interrupts SQL that runs for too long."""

# duckdb carries no types. Evaluated annotations would keep its types alive at the exit of Python (see sessions.py).
from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import duckdb

from leafbeam.errors import ArgumentError, DataError

DEFAULT_S = 60.0
_MAX_S = 86_400.0
_AGAIN_S = 0.05


class TimeLimit:
    """Bounds the seconds of each block of SQL statements, and ends all of them at `stop`.

    DuckDB looks for an interrupt between chunks of 2,048 rows: one call of a function on one row cannot be interrupted.
    Raises ArgumentError unless 0 < seconds <= a day.
    """

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds <= _MAX_S:
            raise ArgumentError(f"rule_timeout_s={seconds!r}: expected seconds, above 0 and up to a day (--rule-timeout)")
        self.seconds = seconds
        self.stopped = False
        self._changed = threading.Condition()

    @contextmanager
    def enforce(self, connection: duckdb.DuckDBPyConnection) -> Generator[None]:
        """In the block the connection's statements raise duckdb.InterruptException beyond the limit. Cost: a thread, 0.1 ms.

        Raises DataError after `stop`.
        """
        if self.stopped:
            raise DataError("the catalog is closed: no rule is evaluated any more")
        running = [connection]
        threading.Thread(target=self._watch, args=(running,), name="leafbeam-rule-timeout", daemon=True).start()
        try:
            yield
        finally:
            with self._changed:
                running.clear()
                self._changed.notify_all()

    def stop(self) -> None:
        """Interrupt every block that runs, and start no other."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def _watch(self, running: list[duckdb.DuckDBPyConnection]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or not running, self.seconds)
            while running:  # again, because an interrupt between two statements of the block is lost
                running[0].interrupt()
                self._changed.wait(_AGAIN_S)
