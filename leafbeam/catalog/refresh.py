"""Rules that are evaluated again from time to time: when, and by whom."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from leafbeam.catalog.rule_config import Rule

__all__ = ["Refresher", "RuleStatus", "Schedule"]

_SHORTEST_REST, _LONGEST_REST = 0.001, 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleStatus:
    """How a rule is doing, for dashboards.

    num_items: live items that it allows now. age_s: seconds since it was last evaluated over all items without an error; None:
    never. seconds: how long that took. refresh: how often it is due, in seconds; None: at a reload only. error: why it could
    not be evaluated when it was last tried, over all items or over some that changed; its last good filter is in force
    meanwhile.
    """

    name: str
    num_items: int
    age_s: float | None
    seconds: float
    refresh: float | None
    error: str | None


class Schedule:
    """When each rule is due, on any clock. Not for two threads at once.

    A rule is due `refresh` seconds after its last evaluation began, or when that ended if it took longer. The one that waits
    longest comes first, so a slow rule delays others by one evaluation and starves none.

    >>> schedule = Schedule(); schedule.plan([Rule(name="fresh", where="age < 7", refresh=60.0)], now=0.0)
    >>> schedule.next_due(59.0), schedule.next_due(60.0), schedule.wait(50.0)
    (None, 'fresh', 10.0)
    """

    def __init__(self) -> None:
        self._every: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def plan(self, rules: Iterable[Rule], now: float) -> None:
        """These rules from now on. One that was there with the same interval keeps its turn."""
        every = {rule.name: rule.refresh for rule in rules if rule.refresh is not None}
        self._due = {
            name: self._due[name] if self._every.get(name) == seconds else now + seconds for name, seconds in every.items()
        }
        self._every = every

    def next_due(self, now: float) -> str | None:
        """The rule that has waited longest, if any is due."""
        due = [(at, name) for name, at in self._due.items() if at <= now]
        return min(due)[1] if due else None

    def ran(self, name: str, began: float, now: float) -> None:
        """A rule was evaluated, well or not."""
        if name in self._every:
            self._due[name] = max(began + self._every[name], now)

    def wait(self, now: float) -> float | None:
        """Seconds until a rule is due; None where none ever is."""
        return max(0.0, min(self._due.values()) - now) if self._due else None


class Refresher:
    """One background thread that does a piece of work whenever it is time.

    work: does what is due and returns the seconds until there is more, None for never. It is a bound method, held weakly: when
    its object is gone, or `close` is called, the thread ends. `wake` lets it look at the time again.
    """

    def __init__(self, work: Callable[[], float | None], name: str) -> None:
        self._work = weakref.WeakMethod(work)
        self._name = name
        self._changed = threading.Condition()
        self._awake = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """The times have changed; the first call starts the thread."""
        with self._changed:
            if self._closed:
                return
            self._awake = True
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread, after the piece of work that it is at."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

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
                # A weakly held object does not announce its end: look now and then. Nor may work without end keep all others
                # from the locks that it takes.
                rest = _LONGEST_REST if wait is None else min(max(wait, _SHORTEST_REST), _LONGEST_REST)
                self._changed.wait_for(lambda: self._awake or self._closed, rest)
