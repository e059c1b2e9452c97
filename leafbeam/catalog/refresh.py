"""Periodic evaluation of rules: when each is due, and the thread that evaluates it."""

import threading
import weakref
from collections.abc import Callable, Iterable

from leafbeam.catalog.definitions import Definition

_MIN_SLEEP_S, _MAX_SLEEP_S = 0.001, 60.0
_CLOSE_S = 5.0


class Schedule:
    """When each rule is due, on any clock. Not thread-safe.

    A rule is due `refresh` seconds after its last evaluation began; if the evaluation took longer than that, as soon as
    it ends. The rule that has been due longest comes first, so a slow rule delays others by one evaluation and starves
    none.

    >>> schedule = Schedule(); schedule.plan([Rule(name="fresh", where="age < 7", refresh=60.0)], now=0.0)
    >>> schedule.next_due(59.0), schedule.next_due(60.0), schedule.wait(50.0)
    (None, 'fresh', 10.0)
    """

    def __init__(self) -> None:
        self._intervals: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def plan(self, definitions: Iterable[Definition], now: float) -> None:
        """Replace the scheduled rules. One that was scheduled with the same interval keeps its time."""
        intervals = {definition.name: definition.refresh for definition in definitions if definition.refresh is not None}
        self._due = {
            name: self._due[name] if self._intervals.get(name) == seconds else now + seconds
            for name, seconds in intervals.items()
        }
        self._intervals = intervals

    def next_due(self, now: float) -> str | None:
        """Return the rule that has been due longest, if any is due."""
        due = [(at, name) for name, at in self._due.items() if at <= now]
        return min(due)[1] if due else None

    def evaluated(self, name: str, began: float, now: float) -> None:
        """Record that a rule was evaluated, successfully or not."""
        if name in self._intervals:
            self._due[name] = max(began + self._intervals[name], now)

    def wait(self, now: float) -> float | None:
        """Return the seconds until a rule is due; None if none ever is."""
        return max(0.0, min(self._due.values()) - now) if self._due else None


class BackgroundWorker:
    """One daemon thread that calls `work` whenever it is due.

    Args:
        work: The bound method to call. It does what is due and returns the seconds until its next call, or None. It is
            held weakly: the thread ends when the method's object is freed, or with `close`. The first `wake` starts the
            thread; later ones call `work` at once.
    """

    def __init__(self, work: Callable[[], float | None], name: str) -> None:
        self._work = weakref.WeakMethod(work)
        self._name = name
        self._changed = threading.Condition()
        self._awake = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Call `work` now."""
        with self._changed:
            if self._closed:
                return
            self._awake = True
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread after the current call of `work`, and wait up to 5 s for that."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                self._awake = False
            work = self._work()
            if work is None:
                return
            wait = work()
            del work
            with self._changed:
                # At most a minute, to notice that the object was freed; at least a millisecond, so that a work that is always
                # due leaves its locks to other threads.
                sleep_s = _MAX_SLEEP_S if wait is None else min(max(wait, _MIN_SLEEP_S), _MAX_SLEEP_S)
                self._changed.wait_for(lambda: self._awake or self._closed, sleep_s)
